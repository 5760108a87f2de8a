//! A SUT's control socket: HTTP/1.1 with JSON bodies over a Unix socket, one question a connection.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::model::LabError;

/// A daemon that does not answer in this time is reported, not waited for.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// An answer longer than this is not one the lab asked for.
const ANSWER_MAX: u64 = 16 << 20;

pub struct Control(PathBuf);

impl Control {
    pub fn new(socket: PathBuf) -> Control {
        Control(socket)
    }

    /// Asks for `path` and reads the answer as JSON.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, LabError> {
        let failed =
            |what: String| LabError::new(format!("control socket {}: GET {path}: {what}", self.0.display()));
        let answer = self.exchange(path).map_err(|e| failed(e.to_string()))?;
        let (head, body) = split(&answer).ok_or_else(|| failed("the answer is not HTTP".into()))?;
        if !head.starts_with("HTTP/1.1 200") {
            return Err(failed(format!("{} {}", head.lines().next().unwrap_or_default(), body.trim())));
        }
        serde_json::from_str(body).map_err(|e| failed(format!("the answer is not what was expected: {e}")))
    }

    fn exchange(&self, path: &str) -> std::io::Result<String> {
        let stream = UnixStream::connect(&self.0)?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        ask(stream, &format!("GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n"))
    }
}

/// Says `request` in one piece, and hears all of the answer.
pub(super) fn ask(mut stream: impl Read + Write, request: &str) -> std::io::Result<String> {
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

fn split(answer: &str) -> Option<(&str, &str)> {
    answer.split_once("\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn answer_with(name: &str, answer: &'static str) -> Result<Vec<u32>, LabError> {
        let path = std::env::temp_dir().join(format!("weir-lab-test-{}-{name}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a fresh name");
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("one client");
            let mut request = [0; 256];
            let n = stream.read(&mut request).expect("a request");
            stream.write_all(answer.as_bytes()).expect("the client waits");
            String::from_utf8_lossy(&request[..n]).into_owned()
        });
        let result = Control::new(path.clone()).get("/v1/x");
        std::fs::remove_file(&path).expect("ours");
        assert!(served.join().expect("served").starts_with("GET /v1/x HTTP/1.1\r\n"));
        result
    }

    #[test]
    fn an_answer_is_read_and_a_refusal_is_quoted() {
        assert_eq!(answer_with("ok", "HTTP/1.1 200 OK\r\nx: y\r\n\r\n[1,2]\n"), Ok(vec![1, 2]));
        let refused = answer_with("no", "HTTP/1.1 404 Not Found\r\n\r\n{\"error\":\"no such thing\"}\n");
        assert!(refused.expect_err("refused").said.contains("no such thing"));
        let cut = answer_with("cut", "nonsense");
        assert!(cut.expect_err("not HTTP").said.contains("not HTTP"));
    }
}
