//! What the router's rules ask of IPsec where it is not compiled in: nothing.

pub(super) mod hooks {
    use crate::id::PortId;
    use crate::router::decide::{Arrival, Context, Decision, Observer};
    use crate::router::lasting::Passed;
    use crate::tables::Tables;
    use crate::verdict::Reason;

    #[inline(always)]
    pub(in crate::router) fn opens(_: &Context<'_>, _: &[u8], _: &mut impl Observer) -> Option<Decision> {
        None
    }

    #[inline(always)]
    pub(in crate::router) fn awaits(_: &Tables, _: &Arrival<'_>, _: &[u8]) -> Option<Decision> {
        None
    }

    #[inline(always)]
    pub(in crate::router) fn host(_: &Tables, _: PortId) -> Option<Decision> {
        None
    }

    #[inline(always)]
    pub(in crate::router) fn to_us(_: &Tables, _: &Arrival<'_>, _: &[u8]) -> Option<Decision> {
        None
    }

    #[inline(always)]
    pub(in crate::router) fn refuses(
        _: &Tables,
        _: &Arrival<'_>,
        _: &[u8],
        _: &mut impl Observer,
    ) -> Option<Reason> {
        None
    }

    #[inline(always)]
    pub(in crate::router) fn passed<'a>(_: &'a Tables, _: (PortId, PortId), _: &[u8]) -> Option<Passed<'a>> {
        Some(Passed::default())
    }
}
