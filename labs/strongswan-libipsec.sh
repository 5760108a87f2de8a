#!/usr/bin/env bash
# TCP through a tunnel of strongSwan's userspace ESP (kernel-libipsec, keyed by IKEv2) and through one of weir,
# by turns, on the same wires and the same cores; says each rate, the medians and their ratio.
#
#   sudo labs/strongswan-libipsec.sh [rounds] [seconds]     defaults: 3 rounds of 5 s each way
#
#   host a ──veth── left gateway ──veth── right gateway ──veth── host b     all namespaces of this machine
#
# Both gateways are of one kind, AES-GCM-128 in UDP (libipsec knows nothing else), MTU 1400 inside. Needs root,
# target/release/weir, iperf3, strongswan-charon, strongswan-swanctl, libcharon-extra-plugins,
# libstrongswan-standard-plugins. Everything is private to a folder and namespaces that go away at the end.
set -euo pipefail
rounds=${1:-3}
seconds=${2:-5}
cd "$(dirname "$0")/.."
weir=${WEIR:-$PWD/target/release/weir}
charon=/usr/lib/ipsec/charon
for program in ip iperf3 swanctl "$charon" "$weir"; do
  command -v "$program" >/dev/null || { echo "$program is missing: see the top of $0" >&2; exit 1; }
done
work=$(mktemp -d)
ns=weirbase$$
daemons=()

stop() {
  for daemon in "${daemons[@]}"; do kill -9 "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; done
  daemons=()
  for place in a l r b; do ip netns del "$ns-$place" 2>/dev/null || true; done
}
trap 'stop; rm -rf "$work"' EXIT

wire() { ip link add "$2" netns "$ns-$1" type veth peer name "$4" netns "$ns-$3"; }

# bed: namespaces, wires and the hosts' addresses.
bed() {
  for place in a l r b; do ip netns add "$ns-$place"; ip -n "$ns-$place" link set lo up; done
  wire a a0 l l0; wire l l1 r r1; wire b b0 r r0
  for end in a:a0 l:l0 l:l1 r:r1 r:r0 b:b0; do ip -n "$ns-${end%:*}" link set "${end#*:}" up; done
  ip -n "$ns-a" addr add 10.1.0.2/24 dev a0; ip -n "$ns-a" route add default via 10.1.0.1
  ip -n "$ns-b" addr add 10.2.0.2/24 dev b0; ip -n "$ns-b" route add default via 10.2.0.1
}

# strongswan: both gateways of its kind.
strongswan() {
  local side near far local remote
  for side in l r; do
    [ $side = l ] && near=1 far=2 || near=2 far=1
    ip -n "$ns-$side" addr add "10.$near.0.1/24" dev "${side}0"
    ip -n "$ns-$side" addr add "192.0.2.$near/24" dev "${side}1"
    ip netns exec "$ns-$side" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
    cat >"$work/$side.conf" <<END
charon {
  load = random nonce openssl kdf kernel-libipsec kernel-netlink socket-default vici updown
  plugins {
    vici {
      socket = unix://$work/$side.vici
    }
  }
}
END
    cat >"$work/$side.swanctl" <<END
connections {
  row {
    version = 2
    mobike = no
    local_addrs = 192.0.2.$near
    remote_addrs = 192.0.2.$far
    proposals = aes128-sha256-curve25519
    local {
      auth = psk
      id = gateway-$near
    }
    remote {
      auth = psk
      id = gateway-$far
    }
    children {
      row {
        local_ts = 10.$near.0.0/24
        remote_ts = 10.$far.0.0/24
        esp_proposals = aes128gcm16
      }
    }
  }
}
secrets {
  ike {
    secret = "known to both, and to nobody else"
  }
}
END
    rm -f "$work/$side.vici"
    STRONGSWAN_CONF=$work/$side.conf ip netns exec "$ns-$side" \
      sh -c "mount -t tmpfs tmpfs /run && exec $charon" >/dev/null 2>&1 &
    daemons+=($!)
  done
  for side in l r; do
    for _ in $(seq 100); do [ -S "$work/$side.vici" ] && break; sleep 0.1; done
    SWANCTL_DIR=$work swanctl --load-all --uri "unix://$work/$side.vici" --file "$work/$side.swanctl" >/dev/null 2>&1
  done
  swanctl --initiate --uri "unix://$work/l.vici" --child row >/dev/null
}

# weir: both gateways of its kind.
weir() {
  local side near far name
  for side in l r; do
    [ $side = l ] && near=1 far=2 || near=2 far=1
    {
      for name in 1 2; do echo "from-$name = \"$(printf "$name%.0s" $(seq 40))\""; done
    } >"$work/$side.keys"
    chmod 600 "$work/$side.keys"
    cat >"$work/$side.toml" <<END
[[port]]
name = "lan"
device = "${side}0"
addresses = ["10.$near.0.1/24"]
[[port]]
name = "wan"
device = "${side}1"
addresses = ["192.0.2.$near/24"]
[ipsec]
keys = "$side.keys"
$(for name in 1 2; do
    [ $name = $near ] && direction=out || direction=in
    cat <<SA
[[sa]]
name = "$direction"
direction = "$direction"
spi = $((4096 + name))
source = "192.0.2.$name"
destination = "192.0.2.$((3 - name))"
cipher = "aes-gcm-128"
esn = false
nat_t = true
key = "from-$name"
SA
  done)
[[tunnel]]
name = "far"
out = "out"
in = "in"
mtu = 1400
[[route]]
prefix = "10.$far.0.0/24"
via = { port = "far" }
END
    ip netns exec "$ns-$side" "$weir" --socket "$work/$side.sock" run "$work/$side.toml" 2>"$work/$side.log" &
    daemons+=($!)
  done
  for side in l r; do
    for _ in $(seq 100); do grep -q 'is ready' "$work/$side.log" && continue 2; sleep 0.1; done
    cat "$work/$side.log" >&2
    exit 1
  done
}

# rate: TCP from a to b, then from b to a, in Mbit/s.
rate() {
  ip netns exec "$ns-b" iperf3 -s -D -I "$work/iperf3.pid" >/dev/null
  sleep 0.3
  for reverse in '' -R; do
    ip netns exec "$ns-a" iperf3 -c 10.2.0.2 -t "$seconds" -O 1 -f m $reverse |
      awk '/receiver/ { for (i = 1; i < NF; i++) if ($(i + 1) == "Mbits/sec") print $i }'
  done
  kill "$(tr -d '\0' <"$work/iperf3.pid")"
}

median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }

for round in $(seq "$rounds"); do
  for kind in strongswan weir; do
    bed
    $kind
    rates=$(rate)
    stop
    echo "$rates" >>"$work/$kind.rates"
    echo "round $round $kind: $(echo $rates) Mbit/s there and back"
  done
done
ours=$(median "$work/weir.rates")
theirs=$(median "$work/strongswan.rates")
echo "median: strongswan $theirs, weir $ours Mbit/s: $(awk "BEGIN { printf \"%.2f\", $ours / $theirs }") times"
