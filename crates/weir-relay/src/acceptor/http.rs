//! As much of HTTP/1.1 as a relay's pages need: heads in, short answers out (RFC 9112).
//!
//! Promises: a head of at most 16 KiB and 64 fields, refused before more is read; an answer says its length. Refuses:
//! requests with a body (nothing here takes one), smuggling's raw material: both lengths, or two of one, and targets that name no
//! path of this server (RFC 9112 3.2): what is made of a path afterwards begins with `/`.

use percent_encoding::percent_decode_str;

/// Heads of browsers are some hundred bytes, of clients behind proxies a few KiB.
pub const HEAD_MAX: usize = 16 << 10;
const FIELDS_MAX: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub method: String,
    pub path: String,
    pub query: String,
    /// Names in lower case.
    fields: Vec<(String, String)>,
    pub keep_alive: bool,
}

/// A head that is not answered with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Malformed,
    TooLong,
    Body,
}

impl Wrong {
    pub fn answer(self) -> HttpResponse {
        match self {
            Wrong::Malformed => HttpResponse::text(400, "the request is not HTTP/1.1\n"),
            Wrong::TooLong => {
                HttpResponse::text(431, "the request's head is longer than 16 KiB or 64 fields\n")
            }
            Wrong::Body => HttpResponse::text(413, "nothing here takes a body\n"),
        }
    }
}

impl Head {
    /// The first head of `bytes` and its length, or nothing while it is not whole.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, Wrong> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let length = match request.parse(bytes) {
            Ok(httparse::Status::Complete(length)) if length <= HEAD_MAX => length,
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(Wrong::TooLong),
            Err(_) => return Err(Wrong::Malformed),
        };
        let target = origin_form(request.path.unwrap_or_default()).ok_or(Wrong::Malformed)?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let text = |value: &[u8]| String::from_utf8_lossy(value).trim().to_owned();
        let mut head = Head {
            method: request.method.unwrap_or_default().to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            fields: request.headers.iter().map(|h| (h.name.to_ascii_lowercase(), text(h.value))).collect(),
            keep_alive: false,
        };
        let one_one = request.version == Some(1);
        head.keep_alive = match head.field("connection").map(str::to_ascii_lowercase) {
            Some(connection) if connection.contains("close") => false,
            Some(connection) if connection.contains("keep-alive") => true,
            _ => one_one,
        };
        let length_given = head.fields.iter().filter(|f| f.0 == "content-length");
        if head.field("transfer-encoding").is_some() || length_given.clone().any(|f| f.1 != "0") {
            return Err(Wrong::Body);
        }
        Ok(Some((head, length)))
    }

    /// Path and query as a URL has them.
    pub fn target(&self) -> String {
        if self.query.is_empty() { self.path.clone() } else { format!("{}?{}", self.path, self.query) }
    }

    /// The first field of this name (in lower case).
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|f| f.0 == name).map(|f| f.1.as_str())
    }

    /// The first value of this key in the query, decoded.
    pub fn asked(&self, key: &str) -> Option<String> {
        self.query.split('&').find_map(|pair| {
            let (k, v) = pair.split_once('=').unwrap_or((pair, ""));
            (k == key).then(|| percent_decode_str(v).decode_utf8_lossy().into_owned())
        })
    }
}

/// Path and query of a request's target (RFC 9112 3.2.1, 3.2.2); nothing of one that has no path here: an authority, `*`,
/// or what a URL must not hold.
fn origin_form(target: &str) -> Option<&str> {
    let scheme = target.split_once("://").map(|(scheme, _)| scheme);
    let path = match scheme.filter(|s| s.eq_ignore_ascii_case("http") || s.eq_ignore_ascii_case("https")) {
        Some(scheme) => {
            let behind = &target[scheme.len() + 3..];
            match behind.find(['/', '?']) {
                Some(at) if behind[at..].starts_with('/') => &behind[at..],
                // An empty path with a query is not worth a copy: nobody asks so.
                Some(_) => return None,
                None => "/",
            }
        }
        None => target,
    };
    let fits = |b: u8| b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&b);
    (path.starts_with('/') && path.bytes().all(fits)).then_some(path)
}

/// A short answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    pub fields: Vec<(&'static str, String)>,
    pub body: String,
}

impl HttpResponse {
    pub fn new(status: u16, kind: &str, body: impl Into<String>) -> HttpResponse {
        HttpResponse { status, fields: vec![("Content-Type", kind.to_owned())], body: body.into() }
    }

    pub fn text(status: u16, body: impl Into<String>) -> HttpResponse {
        HttpResponse::new(status, "text/plain; charset=utf-8", body)
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> HttpResponse {
        self.fields.push((name, value.into()));
        self
    }

    /// The whole answer; to HEAD without its body.
    pub fn write(&self, head_only: bool, keep_alive: bool) -> Vec<u8> {
        let mut out = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        for (name, value) in &self.fields {
            out += &format!("{name}: {value}\r\n");
        }
        if self.status != 204 {
            out += &format!("Content-Length: {}\r\n", self.body.len());
        }
        out += if keep_alive { "Connection: keep-alive\r\n\r\n" } else { "Connection: close\r\n\r\n" };
        if !head_only && self.status != 204 {
            out += &self.body;
        }
        out.into_bytes()
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        302 => "Found",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_when_it_is_whole_and_not_before() {
        let text = b"GET /derp?x=a%20b HTTP/1.1\r\nHost: h\r\nUPGRADE: DERP\r\n\r\nrest";
        for cut in 0..text.len() - 4 {
            assert_eq!(Head::parse(&text[..cut]), Ok(None), "{cut}");
        }
        let (head, length) = Head::parse(text).expect("well formed").expect("whole");
        assert_eq!(&text[length..], b"rest");
        assert_eq!((head.path.as_str(), head.field("upgrade")), ("/derp", Some("DERP")));
        assert_eq!(head.asked("x").as_deref(), Some("a b"));
        assert!(head.keep_alive);
    }

    #[test]
    fn bodies_endless_heads_and_noise_are_refused() {
        let body = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(Head::parse(body), Err(Wrong::Body));
        let chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(Head::parse(chunked), Err(Wrong::Body));
        assert_eq!(Head::parse(b"\x16\x03\x01\x02\x00\x01\x00"), Err(Wrong::Malformed));
        let endless = [b"GET / HTTP/1.1\r\nA: ".as_slice(), &[b'a'; HEAD_MAX]].concat();
        assert_eq!(Head::parse(&endless), Err(Wrong::TooLong));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(FIELDS_MAX + 1));
        assert_eq!(Head::parse(many.as_bytes()), Err(Wrong::TooLong));
    }

    #[test]
    fn a_target_is_a_path_of_this_server_or_refused() {
        let parse =
            |target: &str| Head::parse(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        let target = |text: &str| parse(text).expect(text).expect("whole").0.target();
        assert_eq!(target("/a?b=c"), "/a?b=c");
        assert_eq!(target("//elsewhere.example/a"), "//elsewhere.example/a");
        assert_eq!(target("http://relay.example:80/a?b"), "/a?b");
        assert_eq!(target("HTTPS://relay.example"), "/");
        // Behind `https://relay.example` each of these would be another host, or end the field.
        for raw in [
            "@elsewhere.example/",
            ".elsewhere.example/",
            ":99/",
            "*",
            "ftp://x/",
            "http://x?y",
            "/\u{e9}",
            "/<a>",
        ] {
            assert_eq!(parse(raw).err(), Some(Wrong::Malformed), "{raw}");
        }
    }

    #[test]
    fn an_answer_to_head_has_the_length_and_no_body() {
        let answer = HttpResponse::text(200, "four");
        let text = String::from_utf8(answer.write(true, true)).expect("text");
        assert!(text.contains("Content-Length: 4\r\n") && text.ends_with("\r\n\r\n"), "{text}");
        let none = String::from_utf8(HttpResponse::text(204, "").write(false, false)).expect("text");
        assert!(!none.contains("Content-Length"), "{none}");
    }
}
