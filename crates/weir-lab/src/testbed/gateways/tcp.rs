//! Bulk TCP: a server that counts what it reads, and a client that writes on so many connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weir_io::cpu;

use crate::model::LabError;
use crate::netns::namespace::Namespace;

pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 2);
const PORT: u16 = 5001;
/// Bytes of one read or write: as iperf3 has it.
const BLOCK: usize = 128 << 10;
const CONNECTS_WITHIN: Duration = Duration::from_secs(1);
/// A thread blocked in the kernel looks this often whether it is to end.
const LOOKS: Duration = Duration::from_millis(100);

pub struct Server {
    read: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens in `namespace`; its threads run on `cpu`.
    pub fn start(namespace: &Namespace, cpu: u32) -> Result<Server, LabError> {
        let (read, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, ended) = (read.clone(), stop.clone());
        let started = namespace.run(move || {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
            listener.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(thread::spawn(move || accept(&listener, cpu, &counter, &ended)))
        })?;
        let thread =
            started.map_err(|e| LabError::new(format!("server: cannot listen on port {PORT}: {e}")))?;
        Ok(Server { read, stop, thread: Some(thread) })
    }

    /// Bytes read on all connections so far.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, cpu: u32, counter: &Arc<AtomicU64>, stop: &Arc<AtomicBool>) {
    let mut readers = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                let (counter, stop) = (counter.clone(), stop.clone());
                readers.push(thread::spawn(move || {
                    // an unpinned thread is slower, not wrong
                    let _ = cpu::pin(cpu);
                    swallow(stream, &counter, &stop);
                }));
            }
            Err(_) => thread::sleep(LOOKS / 10),
        }
    }
    readers.into_iter().for_each(|r| drop(r.join()));
}

fn swallow(mut stream: TcpStream, counter: &AtomicU64, stop: &AtomicBool) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(LOOKS));
    let mut block = vec![0; BLOCK];
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut block) {
            Ok(0) => return,
            Ok(n) => drop(counter.fetch_add(n as u64, Ordering::Relaxed)),
            Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => {}
            Err(_) => return,
        }
    }
}

pub struct Client {
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
}

impl Client {
    /// Opens the connections from `namespace` and writes on all until stopped.
    pub fn start(namespace: &Namespace, connections: u32, cpu: u32) -> Result<Client, std::io::Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = stop.clone();
        let writers = namespace.run(move || {
            let address = SocketAddr::from((SERVER, PORT));
            let streams: Vec<TcpStream> = (0..connections)
                .map(|_| TcpStream::connect_timeout(&address, CONNECTS_WITHIN))
                .collect::<Result<_, _>>()?;
            let writer = |stream: TcpStream| {
                let stop = ended.clone();
                thread::spawn(move || {
                    let _ = cpu::pin(cpu);
                    pour(stream, &stop);
                })
            };
            Ok::<_, std::io::Error>(streams.into_iter().map(writer).collect())
        });
        Ok(Client { stop, writers: writers.map_err(|e| std::io::Error::other(e.said))?? })
    }

    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.writers.drain(..).for_each(|w| drop(w.join()));
    }
}

fn pour(mut stream: TcpStream, stop: &AtomicBool) {
    let _ = stream.set_write_timeout(Some(LOOKS));
    let block = vec![0; BLOCK];
    while !stop.load(Ordering::Relaxed) {
        match stream.write(&block) {
            Ok(_) => {}
            Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => {}
            Err(_) => return,
        }
    }
}
