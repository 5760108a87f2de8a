//! What a router's control socket has: paths, methods and options become a [`Resource`].

use std::net::IpAddr;

use crate::control::page::Page;
use crate::control::{ApplyRequest, HttpRequest, Response};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    Status,
    Ports,
    /// Those whose prefix has this address, or all; from this one on, counted from 0; so many.
    Routes {
        address: Option<IpAddr>,
        skip: usize,
        limit: Option<usize>,
    },
    Neighbors(Page),
    Workers,
    Drops,
    Sas(Page),
    Spds,
    Tunnels(Page),
    Cache,
    Flows(Page),
    Offload,
    Apply(ApplyRequest),
    Policies {
        body: Vec<u8>,
        dry_run: bool,
    },
    Trace {
        body: Vec<u8>,
    },
    Capture {
        body: Vec<u8>,
    },
    Config,
    Metrics,
}

const INDEX: &str = "weir control socket of a router\n\
    GET  /v1/status     name, version, generation, what works otherwise than asked\n\
    GET  /v1/ports      devices, addresses, traffic, losses\n\
    GET  /v1/routes     the first 1,000; ?limit=N for more, ?from=N for the next, ?for=ADDRESS those that lead there\n\
    GET  /v1/neighbors  ARP and NDP; ?match=TEXT, ?from=N, ?limit=N here and of /v1/sa and /v1/tunnels\n\
    GET  /v1/workers    ledgers, buffers, traffic by port\n\
    GET  /v1/drops      by reason, with who has to act\n\
    GET  /v1/sa         IPsec: security associations, traffic, why packets failed\n\
    GET  /v1/spd        IPsec: policies in order, what each decided\n\
    GET  /v1/tunnels    IPsec: tunnels of route mode\n\
    GET  /v1/cache      IPsec: flow caches and rules of SPDs, SPD lookup sources\n\
    GET  /v1/flows      flows of the kernel's firewall; the same, 1,000 without ?limit\n\
    GET  /v1/offload    how many of them are forwarded past it, and why the others are not\n\
    POST /v1/apply      a configuration as the body; ?dry-run only tells what it would do; ?file=NAME for complaints,\n\
    \x20                   ?folder=PATH where the keys file lies\n\
    POST /v1/policies   {\"spd\": \"wan\", \"changes\": [{\"remove\": {\"name\": \"p\"}}]}; ?dry-run only tells\n\
    POST /v1/trace      {\"port\": \"lan\", \"frame\": \"<hex>\"}\n\
    POST /v1/capture    copies of dropped packets: {\"reasons\": [\"no_route\"]} begins, {\"id\": N} fetches; \"end\": true\n\
    GET  /v1/config     what runs, as a file; changes of policies that no file has\n\
    POST /v1/reload     reads its file again, as SIGHUP does\n\
    POST /v1/stop       ends in order, as SIGTERM does\n\
    GET  /metrics       Prometheus text\n";

/// A page of routes: `?for=ADDRESS`, `?from=N` counted from 1, `?limit=N` or `all`.
fn routes(request: &HttpRequest) -> Result<Resource, Response> {
    let wrong = |key: &str, got: &str, expected: &str| {
        Response::refusal(400, format!("routes: {key}: got `{got}`, expected {expected}"))
    };
    let address = request.option("for").map(|a| a.parse().map_err(|_| wrong("for", &a, "an address")));
    let from = request.option("from").map(|n| match n.parse::<usize>() {
        Ok(n) if n > 0 => Ok(n - 1),
        _ => Err(wrong("from", &n, "a number from 1 on")),
    });
    let limit = request.option("limit").map_or(Some(1000), |l| l.parse().ok());
    Ok(Resource::Routes { address: address.transpose()?, skip: from.transpose()?.unwrap_or(0), limit })
}

impl Resource {
    pub fn of(request: HttpRequest) -> Result<Resource, Response> {
        let get = |resource: Resource| request.get(resource);
        match request.path.as_str() {
            "/" | "/v1" | "/v1/" => Err(Response::text(INDEX)),
            "/v1/status" => get(Resource::Status),
            "/v1/ports" => get(Resource::Ports),
            "/v1/routes" => routes(&request).and_then(get),
            "/v1/neighbors" => Page::of(&request).map(Resource::Neighbors).and_then(get),
            "/v1/workers" => get(Resource::Workers),
            "/v1/drops" => get(Resource::Drops),
            "/v1/sa" => Page::of(&request).map(Resource::Sas).and_then(get),
            "/v1/spd" => get(Resource::Spds),
            "/v1/tunnels" => Page::of(&request).map(Resource::Tunnels).and_then(get),
            "/v1/cache" => get(Resource::Cache),
            "/v1/flows" => {
                let page = Page::of(&request)?;
                let limit = if request.option("limit").is_some() { page.limit } else { Some(1000) };
                get(Resource::Flows(Page { limit, ..page }))
            }
            "/v1/offload" => get(Resource::Offload),
            "/v1/config" => get(Resource::Config),
            "/metrics" => get(Resource::Metrics),
            "/v1/apply" => request.apply().map(Resource::Apply),
            "/v1/policies" => {
                let dry_run = request.is_dry_run();
                request.post(())?;
                Ok(Resource::Policies { body: request.body, dry_run })
            }
            "/v1/trace" => {
                request.post(())?;
                Ok(Resource::Trace { body: request.body })
            }
            "/v1/capture" => {
                request.post(())?;
                Ok(Resource::Capture { body: request.body })
            }
            path => Err(Response::refusal(
                404,
                format!(
                    "{path}: no such resource of a router (a relay's file has `[relay]`); GET / lists what there is"
                ),
            )),
        }
    }

    /// What the response counts includes everything that happened before it was asked for.
    pub fn shows_figures(&self) -> bool {
        use Resource::{Cache, Drops, Metrics, Ports, Spds, Status, Tunnels, Workers};
        matches!(self, Status | Ports | Workers | Drops | Spds | Tunnels(_) | Cache | Metrics)
    }
}

#[cfg(test)]
mod tests {
    use hyper::Method;

    use super::*;

    #[test]
    fn paths_lead_to_resources() {
        let of = |method: Method, path: &str, query: &str| {
            Resource::of(HttpRequest { method, path: path.into(), query: query.into(), body: b"x".to_vec() })
        };
        assert_eq!(of(Method::GET, "/v1/ports", ""), Ok(Resource::Ports));
        let apply = of(Method::POST, "/v1/apply", "dry-run&file=a.toml");
        let wanted = ApplyRequest { file: "a.toml".into(), folder: None, text: "x".into(), dry_run: true };
        assert_eq!(apply, Ok(Resource::Apply(wanted)));
        let all = Resource::Routes { address: None, skip: 0, limit: None };
        assert_eq!(of(Method::GET, "/v1/routes", "limit=all"), Ok(all));
        let some = Resource::Routes { address: "fd00::1".parse().ok(), skip: 4, limit: Some(1000) };
        assert_eq!(of(Method::GET, "/v1/routes", "for=fd00%3A%3A1&from=5"), Ok(some));
        for wrong in ["for=lan", "from=0", "from=x"] {
            assert_eq!(of(Method::GET, "/v1/routes", wrong).expect_err("refused").status, 400, "{wrong}");
        }
        assert_eq!(of(Method::GET, "/v1/apply", "").expect_err("refused").status, 405);
        assert_eq!(of(Method::GET, "/v1/trace", "").expect_err("refused").status, 405);
        assert_eq!(of(Method::GET, "/v2", "").expect_err("refused").status, 404);
        assert_eq!(of(Method::GET, "/v1/peers", "").expect_err("a relay's").status, 404);
    }
}
