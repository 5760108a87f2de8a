//! Policies as the kernel tells them: `xfrm_userpolicy_info` with its selector, and the templates behind it.

use std::net::{IpAddr, Ipv6Addr};

use super::super::netlink::{Malformed, attributes, u16_at, u32_at};
use super::{
    Mode, News, Policy, PolicyDirection, Selector, TEMPLATE, Template, USERPOLICY_ID, USERPOLICY_INFO,
    address, attribute, be32, number, pair,
};
use crate::route::Prefix;

/// A policy that is gone.
pub(super) fn deleted(payload: &[u8]) -> Result<News, Malformed> {
    let rest = payload.get(USERPOLICY_ID..).ok_or(Malformed)?;
    let mut info = None;
    for attribute in attributes(rest) {
        if let (attribute::POLICY, value) = attribute? {
            info = Some(value);
        }
    }
    let policy = policy(info.ok_or(Malformed)?, rest, payload)?;
    Ok(policy.map_or(News::Other, |p| News::PolicyGone(Box::new(p))))
}

/// A policy of `xfrm_userpolicy_info` and the attributes behind it. None: of a family that is no IP, or of a socket.
pub(super) fn policy(info: &[u8], rest: &[u8], raw: &[u8]) -> Result<Option<Policy>, Malformed> {
    let info = info.get(..USERPOLICY_INFO).ok_or(Malformed)?;
    let Some(selector) = selector(info)? else { return Ok(None) };
    let direction = match info[160] {
        0 => PolicyDirection::In,
        1 => PolicyDirection::Out,
        2 => PolicyDirection::Forward,
        _ => return Ok(None),
    };
    let mut policy = Policy {
        selector,
        direction,
        priority: u32_at(info, 152).ok_or(Malformed)?,
        index: u32_at(info, 156).ok_or(Malformed)?,
        allowed: info[161] == 0,
        templates: Vec::new(),
        if_id: 0,
        mark: (0, 0),
        raw: raw.to_vec(),
        more: false,
    };
    for attribute in attributes(rest) {
        let (kind, value) = attribute?;
        match kind {
            attribute::TEMPLATES => policy.templates = templates(value)?,
            attribute::IF_ID => policy.if_id = number(value)?,
            attribute::MARK => policy.mark = pair(value)?,
            attribute::SECURITY => policy.more = true,
            // `struct xfrm_userpolicy_type`: 1 is a subpolicy.
            attribute::POLICY_TYPE => policy.more |= value.first().is_none_or(|&t| t != 0),
            _ => {}
        }
    }
    Ok(Some(policy))
}

fn selector(bytes: &[u8]) -> Result<Option<Selector>, Malformed> {
    let family = u16_at(bytes, 40).ok_or(Malformed)?;
    let (Some(destination), Some(source)) =
        (address(family, &bytes[..16])?, address(family, &bytes[16..32])?)
    else {
        return Ok(None);
    };
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let width = if source.is_ipv4() { 32 } else { 128 };
    if bytes[42] > width || bytes[43] > width {
        return Err(Malformed);
    }
    Ok(Some(Selector {
        destination: Prefix::new(destination, bytes[42]),
        source: Prefix::new(source, bytes[43]),
        protocol: bytes[44],
        destination_port: (port(32), port(34)),
        source_port: (port(36), port(38)),
        link: u32_at(bytes, 48).ok_or(Malformed)?,
        user: u32_at(bytes, 52).ok_or(Malformed)?,
    }))
}

fn templates(value: &[u8]) -> Result<Vec<Template>, Malformed> {
    let (all, rest) = value.as_chunks::<TEMPLATE>();
    if !rest.is_empty() {
        return Err(Malformed);
    }
    all.iter().map(template).collect()
}

fn template(bytes: &[u8; TEMPLATE]) -> Result<Template, Malformed> {
    let family = u16_at(bytes, 24).ok_or(Malformed)?;
    let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    Ok(Template {
        destination: address(family, &bytes[..16])?.unwrap_or(any),
        source: address(family, &bytes[28..44])?.unwrap_or(any),
        spi: be32(bytes, 16)?,
        protocol: bytes[20],
        request: u32_at(bytes, 44).ok_or(Malformed)?,
        mode: Mode::of(bytes[48]),
        optional: bytes[50] != 0,
    })
}
