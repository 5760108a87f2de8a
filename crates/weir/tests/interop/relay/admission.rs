//! An admission controller: what `verify-client-url` leads to. It remembers who was asked about.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use weir_io::netns;

use super::net::{CONTROL, Net};

const PORT: u16 = 9000;

/// One question and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `nodekey:` and hex digits.
    pub key: String,
    pub source: String,
    pub allowed: bool,
}

#[derive(Default)]
struct State {
    refused: HashSet<String>,
    asked: Vec<Asked>,
}

/// Admits everybody who was not refused by name. Lives as long as the process does.
#[derive(Clone)]
pub struct Admission(Arc<Mutex<State>>);

impl Admission {
    pub fn start(net: &Net) -> Admission {
        let listener = netns::inside(&net.middle, || TcpListener::bind((CONTROL, PORT)));
        let listener = listener.expect("the namespace is there").expect("a listener");
        let admission = Admission(Arc::default());
        let own = admission.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                thread::spawn(move || own.answer(stream));
            }
        });
        admission
    }

    pub fn url() -> String {
        format!("http://{CONTROL}:{PORT}/admit")
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no panic while it is held")
    }

    pub fn refuse(&self, key: &str) {
        self.state().refused.insert(key.to_string());
    }

    pub fn admit(&self, key: &str) {
        self.state().refused.remove(key);
    }

    /// What was asked since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state().asked)
    }

    /// One request a connection.
    fn answer(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let (mut line, mut length, mut post) = (String::new(), 0, false);
        while reader.read_line(&mut line).ok()? > 2 {
            post |= line.starts_with("POST /admit ");
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok()?;
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let question: serde_json::Value = serde_json::from_slice(&body).ok()?;
        let text = |field: &str| question[field].as_str().unwrap_or_default().to_string();
        let (key, source) = (text("NodePublic"), text("Source"));
        let allowed = {
            let mut state = self.state();
            let allowed = post && !state.refused.contains(&key);
            state.asked.push(Asked { key, source, allowed });
            allowed
        };
        let answer = format!("{{\"Allow\":{allowed}}}");
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
        let length = answer.len();
        write!(reader.get_mut(), "{head}Content-Length: {length}\r\n\r\n{answer}").ok()
    }
}
