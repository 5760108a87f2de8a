//! What happens to weir, its devices and its programs while traffic flows.

use weir_io::bpf::attach;

use super::scene::{DEVICES, Kind, Scene};
use super::testbed::{Router, run, until};
use super::traffic::Stream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Start,
    Kill,
    Terminate,
    Panic,
    Restart,
    PortRemoved,
    QueuesUp,
    QueuesDown,
    LinkFlap,
    XdpDetached,
    FilterDetached,
}

pub const EVENTS: [Event; 11] = [
    Event::Start,
    Event::Kill,
    Event::Terminate,
    Event::Panic,
    Event::Restart,
    Event::PortRemoved,
    Event::QueuesUp,
    Event::QueuesDown,
    Event::LinkFlap,
    Event::XdpDetached,
    Event::FilterDetached,
];

impl Event {
    /// A packet socket has one program behind it: without that one the kernel forwards until it is back.
    pub fn concerns(self, kind: Kind) -> bool {
        kind == Kind::AfXdp || !matches!(self, Event::XdpDetached | Event::FilterDetached)
    }

    /// Lets it happen, and goes on for a while; the router if it lives.
    fn happen(self, scene: &Scene, mut router: Router) -> Option<Router> {
        match self {
            Event::Start => Some(router),
            Event::Kill => {
                router.kill();
                None
            }
            Event::Terminate => {
                router.signal("TERM");
                assert!(router.wait(), "{}", router.log());
                assert!(router.log().contains("transit on r0, r1 stays dropped"), "{}", router.log());
                None
            }
            Event::Panic => {
                scene.testbed.file("panic", "");
                assert!(!router.wait());
                let log = router.log();
                assert!(log.contains("ended by a defect of weir"), "{log}");
                assert!(log.contains("transit on r0, r1 stays dropped in front of the kernel"), "{log}");
                None
            }
            Event::Restart => {
                for _ in 0..3 {
                    router.signal("TERM");
                    assert!(router.wait(), "{}", router.log());
                    router = start(scene);
                }
                Some(router)
            }
            Event::PortRemoved => {
                let whole = scene.config();
                let from = whole.find("[[port]]\nname = \"right\"").expect("the second port");
                let file = scene.testbed.file("next.toml", &whole[from..]);
                let told = router.told(&["apply", &file.display().to_string()]);
                assert!(told.contains("r0 is no port then, and its transit stays dropped"), "{told}");
                Some(router)
            }
            Event::QueuesUp => {
                DEVICES.iter().for_each(|device| assert!(scene.queues(device, 4)));
                if scene.kind == Kind::AfXdp {
                    DEVICES
                        .iter()
                        .for_each(|device| router.wait_for(&format!("{device} has 4 receive queues now")));
                }
                Some(router)
            }
            Event::QueuesDown => {
                // The kernel refuses to take queues away under AF_XDP sockets.
                let done = DEVICES.map(|device| scene.queues(device, 1));
                assert_eq!(done, [scene.kind == Kind::AfPacket; 2]);
                Some(router)
            }
            Event::LinkFlap => {
                flap(scene);
                Some(router)
            }
            Event::XdpDetached => {
                for device in DEVICES {
                    let index = scene.index(device);
                    assert!(scene.in_router(|| attach::force_detach(index)).expect("asked"));
                    router.wait_for(&format!("{device}: the XDP program was taken off"));
                }
                assert_eq!(router.metric("weir_device_programs_reattached_total", ""), 2);
                Some(router)
            }
            Event::FilterDetached => {
                for device in DEVICES {
                    scene.take_filter_off(device);
                    router.wait_for(&format!("{device}: the program that keeps transit from the kernel"));
                }
                Some(router)
            }
        }
    }
}

fn flap(scene: &Scene) {
    let router = &scene.testbed.router;
    for (device, v6) in [("r0", "fd01::1/64"), ("r1", "fd02::1/64")] {
        run(&format!("ip -n {router} link set {device} down"));
        run(&format!("ip -n {router} link set {device} up"));
        // The kernel takes IPv6 addresses and routes off a device that goes down.
        run(&format!("ip -n {router} addr replace {v6} dev {device}"));
    }
    run(&format!("ip -n {router} route replace 10.3.0.0/16 via 10.2.0.2"));
    run(&format!("ip -n {router} route replace fd03::/64 via fd02::2"));
}

fn spawn(scene: &Scene) -> Router {
    let fault = format!("WEIR_FAULT_WORKER={}", scene.testbed.folder.join("panic").display());
    scene.testbed.spawn(&scene.config(), &["env", &fault])
}

pub fn start(scene: &Scene) -> Router {
    let router = spawn(scene);
    router.wait_for("is ready");
    assert_native(scene, &router);
    router
}

/// What is tried here is tried with the program in the driver.
fn assert_native(scene: &Scene, router: &Router) {
    let native = router.log().matches("copy mode, native XDP").count();
    assert!(scene.kind == Kind::AfPacket || native >= DEVICES.len(), "{}", router.log());
}

/// One event in one scene: for each way whether it stayed closed, as (case, packets as cleartext).
pub fn play(test: &str, event: Event, scene: &Scene) -> Vec<(String, u64)> {
    if event == Event::QueuesDown {
        DEVICES.iter().for_each(|device| assert!(scene.queues(device, 4)));
    }
    let streams = scene.streams();
    let router = spawn(scene);
    if event == Event::Start {
        // From the moment the points are there, which is before any socket.
        until(test, || scene.kept());
        streams.iter().for_each(Stream::forbid);
    }
    router.wait_for("is ready");
    assert_native(scene, &router);
    streams.iter().for_each(Stream::forbid);
    streams.iter().for_each(|stream| stream.await_sent(100));
    let router = event.happen(scene, router);
    streams.iter().for_each(|stream| stream.await_sent(100));
    scene.assert_counted(&streams, router.as_ref());
    let name = |stream: &Stream| format!("{event:?} {:?} {:?} {}", scene.mode, scene.kind, stream.way.name);
    let cases = streams.iter().map(|stream| (name(stream), stream.forbidden_clear())).collect();
    drop(streams);
    if let Some(router) = router {
        router.assert_conserved();
    }
    cases
}
