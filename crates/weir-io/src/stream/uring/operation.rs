//! Operations in flight: what they are called, and the memory that a send lends to the kernel.

use std::io;

use io_uring::{IoUring, opcode, squeue, types};

use super::lending::GROUP;
use crate::stream::buffers::Part;
use crate::stream::socket;

/// What a completion is of. A stream has at most one of each in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Operation {
    Receive,
    Send,
    Writable,
    CancelReceive,
    CancelWritable,
    Waker,
    CancelAll,
}

const OPERATIONS: [Operation; 7] = [
    Operation::Receive,
    Operation::Send,
    Operation::Writable,
    Operation::CancelReceive,
    Operation::CancelWritable,
    Operation::Waker,
    Operation::CancelAll,
];

impl Operation {
    /// The name of this operation of a stream, as the kernel carries it.
    pub(super) fn of(self, index: u32) -> u64 {
        (self as u64) << 32 | u64::from(index)
    }

    pub(super) fn named(name: u64) -> Option<(Operation, u32)> {
        OPERATIONS.get((name >> 32) as usize).map(|&operation| (operation, name as u32))
    }
}

/// Receives into lent buffers until cancelled.
pub(super) fn receive(socket: i32, index: u32) -> squeue::Entry {
    opcode::RecvMulti::new(types::Fd(socket), GROUP).build().user_data(Operation::Receive.of(index))
}

/// The same, with the control message that names a TLS record's type in front. The kernel reads `message`.
pub(super) fn receive_message(socket: i32, index: u32, message: *const libc::msghdr) -> squeue::Entry {
    let entry = opcode::RecvMsgMulti::new(types::Fd(socket), message, GROUP).build();
    entry.user_data(Operation::Receive.of(index))
}

/// One readiness to send.
pub(super) fn writable(socket: i32, index: u32) -> squeue::Entry {
    let entry = opcode::PollAdd::new(types::Fd(socket), libc::POLLOUT as u32).build();
    entry.user_data(Operation::Writable.of(index))
}

/// A completion for each use of the waker.
pub(super) fn woken(event: i32) -> squeue::Entry {
    let entry = opcode::PollAdd::new(types::Fd(event), libc::POLLIN as u32).multi(true).build();
    entry.user_data(Operation::Waker.of(0))
}

pub(super) fn cancel(target: Operation, index: u32) -> squeue::Entry {
    let name =
        if target == Operation::Receive { Operation::CancelReceive } else { Operation::CancelWritable };
    opcode::AsyncCancel::new(target.of(index)).build().user_data(name.of(index))
}

pub(super) fn cancel_all() -> squeue::Entry {
    let entry = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build();
    entry.user_data(Operation::CancelAll.of(0))
}

/// What the kernel reads while a send is in flight. It stays at one address, and nobody changes it.
pub(super) struct Sending {
    message: libc::msghdr,
    gathered: Vec<libc::iovec>,
    parts: Vec<Part>,
}

impl Sending {
    pub(super) fn new() -> Box<Sending> {
        Box::new(Sending { message: socket::empty_message(), gathered: Vec::new(), parts: Vec::new() })
    }

    /// The entry that sends `parts`. It may be submitted as long as this is neither moved out of its box, nor
    /// given other parts, nor dropped.
    pub(super) fn entry(&mut self, socket: i32, index: u32, parts: Vec<Part>) -> squeue::Entry {
        self.parts = parts;
        socket::gather(&self.parts, &mut self.gathered);
        self.message.msg_iov = self.gathered.as_mut_ptr();
        self.message.msg_iovlen = self.gathered.len();
        let entry = opcode::SendMsg::new(types::Fd(socket), &raw const self.message);
        entry.flags(socket::SEND_FLAGS as u32).build().user_data(Operation::Send.of(index))
    }

    /// Takes the parts out, when the send is over.
    pub(super) fn done(&mut self) -> Vec<Part> {
        self.gathered.clear();
        std::mem::take(&mut self.parts)
    }

    /// Large lists are not kept for the next send.
    pub(super) fn is_small(&self) -> bool {
        self.gathered.capacity() <= 64
    }
}

impl std::fmt::Debug for Sending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sending({} parts)", self.parts.len())
    }
}

/// Entries of the submission queue; more are submitted in several calls.
const SUBMISSIONS: u32 = 1024;
/// Entries of the completion queue; the kernel keeps what does not fit until there is room.
const COMPLETIONS: u32 = 8192;

/// Makes a ring, with what this kernel has, and says what that is.
pub(super) fn ring() -> io::Result<(IoUring, &'static str)> {
    let mut deferred = IoUring::builder();
    deferred.setup_cqsize(COMPLETIONS).setup_clamp().setup_submit_all().setup_single_issuer();
    let mut cooperative = deferred.clone();
    deferred.setup_defer_taskrun();
    cooperative.setup_coop_taskrun();
    match deferred.build(SUBMISSIONS) {
        Ok(ring) => Ok((ring, "completions are taken when we ask for them")),
        // Before 6.1.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok((cooperative.build(SUBMISSIONS)?, "completions are taken with any system call"))
        }
        Err(error) => Err(error),
    }
}
