//! What a relay's control socket has: paths, methods and options become a [`Resource`].

use crate::control::page::Page;
use crate::control::{ApplyRequest, HttpRequest, Response};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    Status,
    Relay,
    Peers(Page),
    Metrics,
    Apply(ApplyRequest),
    Drain,
}

const INDEX: &str = "weir control socket of a relay\n\
    GET  /v1/status     name, version, what works otherwise than asked\n\
    GET  /v1/relay      what became of connections, workers, drops by reason\n\
    GET  /v1/peers      who is connected; ?match=TEXT, ?from=N, ?limit=N\n\
    POST /v1/apply      a configuration as the body; ?dry-run only tells what it would do; ?file=NAME for complaints,\n\
    \x20                   ?folder=PATH where the files it names lie\n\
    POST /v1/drain      accepts no new connections, tells clients to come back, ends\n\
    POST /v1/handover   its listening sockets to a successor (`weir run --take-over`)\n\
    POST /v1/reload     reads its file again, as SIGHUP does\n\
    POST /v1/stop       ends in order, as SIGTERM does\n\
    GET  /metrics       Prometheus text\n";

impl Resource {
    pub fn of(request: &HttpRequest) -> Result<Resource, Response> {
        match request.path.as_str() {
            "/" | "/v1" | "/v1/" => Err(Response::text(INDEX)),
            "/v1/status" => request.get(Resource::Status),
            "/v1/relay" => request.get(Resource::Relay),
            "/v1/peers" => Page::of(request).map(Resource::Peers).and_then(|peers| request.get(peers)),
            "/metrics" => request.get(Resource::Metrics),
            "/v1/apply" => request.apply().map(Resource::Apply),
            "/v1/drain" => request.post(Resource::Drain),
            path => Err(Response::refusal(
                404,
                format!(
                    "{path}: no such resource of a relay, which has status, relay, peers and metrics; GET / lists what there is"
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::Method;

    use super::*;

    #[test]
    fn paths_lead_to_resources() {
        let of = |method: Method, path: &str| {
            let (path, query, body) = (path.to_owned(), String::new(), Vec::new());
            Resource::of(&HttpRequest { method, path, query, body })
        };
        assert_eq!(of(Method::GET, "/v1/peers"), Ok(Resource::Peers(Page::default())));
        assert_eq!(of(Method::POST, "/v1/drain"), Ok(Resource::Drain));
        assert_eq!(of(Method::GET, "/v1/drain").expect_err("refused").status, 405);
        assert_eq!(of(Method::GET, "/v1/ports").expect_err("a router's").status, 404);
    }
}
