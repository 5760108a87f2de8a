"""Three namespaces, client, router and server, joined by veth, for the scripts that measure what following the kernel costs."""

import ctypes, os, re, socket, subprocess, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
stem = f"weirf{os.getpid()}"
client, router, server = (f"{stem}-{place}" for place in "crs")


def run(command, **more):
    return subprocess.run(command, shell=True, check=True, capture_output=True, text=True, **more).stdout


def enter(ns):
    """This thread is in that namespace from now on."""
    with open(f"/run/netns/{ns}") as file:
        if libc.setns(file.fileno(), 0x40000000):
            raise OSError(ctypes.get_errno(), ns)


def make():
    """Both ends reach each other through the router's kernel."""
    for ns in (client, router, server):
        run(f"ip netns add {ns}; ip -n {ns} link set lo up")
    run(f"ip link add c0 netns {client} type veth peer name r0 netns {router}")
    run(f"ip link add s0 netns {server} type veth peer name r1 netns {router}")
    for ns, device, addresses in [
        (client, "c0", "10.1.0.2/24 fd01::2/64"), (router, "r0", "10.1.0.1/24 fd01::1/64"),
        (router, "r1", "10.2.0.1/24 fd02::1/64"), (server, "s0", "10.2.0.2/24 fd02::2/64"),
    ]:
        for address in addresses.split():
            run(f"ip -n {ns} addr add {address} dev {device} {'nodad' if ':' in address else ''}")
        run(f"ip -n {ns} link set {device} up")
    run(f"ip -n {client} route add default via 10.1.0.1; ip -n {server} route add default via 10.2.0.1")
    run(f"ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
    run(f"ip netns exec {client} ethtool -K c0 tx off gro on; ip netns exec {server} ethtool -K s0 tx off gro on")
    run(f"ip netns exec {client} ping -c 1 -W 5 10.2.0.2")


def remove():
    for ns in (client, router, server):
        subprocess.run(["ip", "netns", "del", ns], stderr=subprocess.DEVNULL)


def accelerate(weir, control):
    """A weir in the router that is ready, and the seconds until it was."""
    started = time.monotonic()
    command = ["ip", "netns", "exec", router, weir, "--socket", control, "accelerate", "r0", "r1"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = []
    for line in running.stderr:
        said.append(line)
        if "is ready" in line:
            ready = time.monotonic() - started
            threading.Thread(target=lambda: [None for _ in running.stderr], daemon=True).start()
            return running, ready
    sys.exit("weir did not start:\n" + "".join(said))


def memory(running):
    """Its resident set in bytes."""
    with open(f"/proc/{running.pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) * 1024


def get(control, path):
    """What a running weir answers on its control socket."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(control)
        asking.sendall(f"GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := asking.recv(65536):
            answer += part
    return answer.split(b"\r\n\r\n", 1)[1].decode()
