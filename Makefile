# weir: two commands do everything on a fresh Debian machine with Rust.
#   make demo   build (five minutes on two cores), run a real interleaved experiment (1 min), write a report
#   make test   format, lints, every test; ends with the counts

# everything is built once here: what cargo keeps to build a part of a crate again would only fill the disk
export CARGO_INCREMENTAL ?= 0

.PHONY: help demo test machine-test gateways-test flowtable-test keys-test rekeys drivers xdp-kernels fail-closed firewall-faults restart-replay relay-simulation simulated-week vector-ciphers soak loom tsan miri interop questions evidence relay-ktls strongswan-keys instructions setup build install oci container-test deb deb-arm64 build-without-ipsec lint deny bench fuzz clean

help:
	@sed -n 's/^#   //p' Makefile
	@echo 'also: make machine-test | gateways-test | flowtable-test | keys-test | rekeys REKEYS= | drivers | xdp-kernels | fail-closed | firewall-faults | restart-replay | relay-simulation | simulated-week | vector-ciphers | soak | loom | tsan | miri | interop | questions | evidence | relay-ktls | strongswan-keys | instructions | build | install PREFIX= | oci | container-test | deb | deb-arm64 | build-without-ipsec | lint | bench | fuzz | clean'

demo: build
	./target/release/weir-lab run labs/demo.toml --out out/demo

build: setup
	cargo build --release -p weir -p weir-lab

test: setup lint
	./scripts/test

# every case in which a gateway could let clear text out, about five minutes as root; `make test` has the smoke part
fail-closed: setup
	WEIR_FAIL_CLOSED=all cargo test -p weir --test fail_closed -- --nocapture

# both programs and what belongs to them below PREFIX, for systems without Debian's packages; DESTDIR for those who make packages.
# Built before, so that nothing is built as root: `make build && sudo make install`
PREFIX ?= /usr/local
install:
	@./scripts/install "$(DESTDIR)" "$(PREFIX)"

# an OCI image of the relay, by no daemon, and whether it is one: target/oci/weir-relay.tar
oci: build
	./scripts/oci-image-test
	./scripts/oci-image

# Debian packages of both programs, symbols apart, into target/deb
deb: build
	./scripts/deb

# the same for aarch64, compiled in a Debian root with Debian's Rust (scripts/aarch64), into target/deb-arm64
deb-arm64:
	./scripts/aarch64 build
	./scripts/deb --arch arm64

# the relay's image by podman (crun, runc, without root) and beside headscale, in a whole Debian: ten minutes
container-test: build
	./scripts/container-test

# the packages' life in a whole Debian with systemd: installed, rebooted, upgraded under load, purged; five minutes, docs/packages.md
machine-test: build
	./scripts/machine-test

# two gateways of packages (weir, FRR, strongSwan), each in a whole Debian, joined by a wire; seven minutes, docs/packages.md
gateways-test: build
	./scripts/gateways-test

# flow tables of nftables and weir over the same flows, and VLANs and ESP of the kernel, in a whole Debian; five minutes, docs/firewall.md
flowtable-test: build
	./scripts/flowtable-test

# what strongSwan's keys, dead peers, MOBIKE, many SAs, VLANs and bonds do over AF_XDP ports, in a whole Debian; docs/control.md
keys-test: setup
	./scripts/keys-test

# REKEYS rekeys of a child SA by two IKE daemons under load, in the second kernel: a second or two each; `make test` has six
REKEYS = 1000
rekeys: setup
	WEIR_REKEYS=$(REKEYS) cargo test -p weir --test interop kernel_keys::rekeys_by_time -- --nocapture

# weir over emulated cards of five real drivers, the cases and the speed beside the kernel: half an hour as root on a quiet machine, docs/drivers.md
drivers: setup
	cargo build --release -p weir
	./scripts/drivers

# the XDP programs' own tests, and a router with them, on Linux 6.1, 6.12 and the newest in emulated machines: eight minutes the first time
xdp-kernels: setup
	./scripts/xdp-kernels

# peers of others are installed first; a skipped test is a failed one here
interop: setup
	./scripts/interop

# every way of TLS through the relay, in a kernel that has kernel TLS; figures measured there mean nothing
relay-ktls: build
	./scripts/second-kernel ./target/release/weir-lab run labs/relay-ktls.toml --quick --out out/relay-ktls

# what kernel TLS and kernel ESP cost beside weir's, in instructions: ten minutes of QEMU, whose clock counts them (SKIP names what is missing)
instructions: build
	./scripts/instructions runs

# gateways that strongSwan keys, by weir's ESP, strongSwan's and the kernel's, in a kernel that has ESP; values measured there mean nothing
strongswan-keys: build
	@mkdir -p out
	sed '/^flows = 4/a port = "af_packet"' labs/ipsec-strongswan-keys.toml > out/strongswan-keys.toml
	./scripts/second-kernel ./target/release/weir-lab run out/strongswan-keys.toml --quick --out out/strongswan-keys

# the founding questions, under 40 minutes on two cores as root: runs/<date>-<machine>-question-*, docs/answers.md, docs/benchmarks.md
QUESTIONS = unused-ipsec ciphers placement spd relay
questions: build build-without-ipsec
	@./scripts/peers derper || echo 'SKIP derper: question-relay names what is missing'
	./target/release/weir-lab run $(QUESTIONS:%=labs/question-%.toml) --into runs
	./target/release/weir-lab report --documents README.md docs/answers.md docs/benchmarks.md

# every campaign that README.md and docs/benchmarks.md have values of but VPP's, three hours on two cores as root. What was interrupted goes on
# when it is called again at the same commit. VPP's need VPP built from source: labs/vpp-*.toml
EVIDENCE = demo worker-path flow-offload-queues moderation-latency xdp-fib ipsec-secgw ipsec-sizes ipsec-one-sa ipsec-modes ipsec-strongswan \
  question-unused-ipsec-linux relay relay-tls relay-sparse relay-connects relay-idle relay-latency relay-peers relay-rates relay-stalled \
  relay-stalled-latency relay-tls-own-code relay-tunnels spd-depth spd-churn spd-attack spd-flows question-spd-linux ipsec-equilibrium firewall \
  firewall-latency firewall-connections
evidence: build build-without-ipsec
	@./scripts/peers derper dpdk-l3fwd dpdk-ipsec-secgw ipsec-mb-avx2 tailscale tailscaled headscale || echo 'SKIP peers: each campaign names what is missing'
	./target/release/weir-lab run $(EVIDENCE:%=labs/%.toml) $(QUESTIONS:%=labs/question-%.toml) --into runs --missing
	OPENSSL_ia32cap=:~0xd0030000 ./target/release/weir-lab run labs/relay-tls-without-avx512.toml --into runs --missing
	ls -d runs/*-esp-instructions >/dev/null 2>&1 || ./scripts/instructions runs || echo 'SKIP instructions: see scripts/machine'
	./target/release/weir-lab report --documents README.md docs/answers.md docs/benchmarks.md
	./target/release/weir-lab report --documents README.md docs/answers.md docs/benchmarks.md --check
	./target/release/weir-lab verify runs

# what labs/question-unused-ipsec.toml compares with
build-without-ipsec: setup
	cargo build --release -p weir-lab --no-default-features --target-dir target/without-ipsec

# what happens to and around weir in the middle of 1,000 transfers and 1,000 UDP flows through a masquerading firewall, ten minutes as
# root; `make test` has it with eight of each
firewall-faults: setup
	WEIR_FIREWALL_FAULTS=all cargo test -p weir --test namespaces firewall_faults -- --nocapture --test-threads=1

lint:
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets -- -D warnings
	@$(MAKE) --no-print-directory deny

# licences, sources and duplicates; and known defects of what is in Cargo.lock, where a copy of the RustSec database is here
ADVISORIES = $(or $(CARGO_HOME),$(HOME)/.cargo)/advisory-dbs
deny:
	@if ! command -v cargo-deny >/dev/null; then \
	   echo 'SKIP cargo deny: cargo-deny is not installed (cargo install cargo-deny)'; exit 0; fi; \
	 cargo fetch --locked -q && cargo deny --offline check bans licenses sources || exit 1; \
	 if ls -d $(ADVISORIES)/*/ >/dev/null 2>&1; then cargo deny --offline check advisories; \
	 else echo 'SKIP cargo deny advisories: no copy of the RustSec database in $(ADVISORIES) (cargo deny fetch db)'; fi

# a billion numbers over 1,000 lives on a disk that loses what was not synced; 100 kills of real gateways under load
restart-replay: setup
	WEIR_LIVES_PACKETS=1500000000 cargo test --release -p weir-core --test pipeline durable_lives -- --nocapture
	WEIR_RESTARTS=100 cargo test -p weir --test namespaces restarts_at_random -- --nocapture

# random histories of the relay on virtual time, one process a core: SECONDS each, with debug assertions; every process says its seeds
# and counts each minute and appends them to fuzz/simulation.log, and a failure names the seed that plays it again
# (WEIR_SIMULATION_SEED); `scripts/fuzz --hours fuzz/simulation.log` sums the log; `make test` has some of them
SECONDS = 600
relay-simulation: export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS = true
relay-simulation: export CARGO_TARGET_DIR = target/simulation
relay-simulation: setup
	cargo test --release -p weir-relay --test simulation --no-run
	seq $$(nproc) | WEIR_SIMULATION_SECONDS=$(SECONDS) WEIR_SIMULATION_LOG=$(CURDIR)/fuzz/simulation.log xargs -P 0 -I{} \
	  cargo test --release -q -p weir-relay --test simulation campaign -- --nocapture

# two gateways under load that are changed and disturbed all the time, SECONDS long (`make soak SECONDS=7200`), as root; each minute says how
# far it is; `make test` has twenty seconds of it
soak: setup
	WEIR_SOAK_SECONDS=$(SECONDS) cargo test -p weir --test namespaces soak -- --nocapture

# two gateways on virtual time that change every second, a week of it in two minutes; `make test` has an hour
simulated-week: setup
	WEIR_WEEK_SECONDS=604800 cargo test --release -p weir-core --features testing --test pipeline -- simulated_week --nocapture

# every length of ESP packets in batches, weir's vector ciphers of each width against aws-lc, on all CPUs: runs/vector-ciphers.txt gets a line
vector-ciphers: setup
	WEIR_VECTOR_CIPHERS=all WEIR_VECTOR_CIPHERS_LOG=$(CURDIR)/runs/vector-ciphers.txt WEIR_VECTOR_CIPHERS_BY="$$(date -u +%F) $$(git rev-parse --short HEAD)" \
	  cargo test --release -p weir-io --test ciphers every_length -- --nocapture

# what threads share in every order of their accesses, and whether the models notice what is done to them: three minutes; `make test`
# has the models
loom: setup
	./scripts/loom mutants

# tests of what threads share under ThreadSanitizer; builds the standard library, five minutes
tsan:
	./scripts/tsan

# memory that is written by pointers, under Miri
miri:
	./scripts/miri

bench: setup
	cargo bench --workspace

# every fuzz target with coverage, SECONDS each, one after the other (make fuzz SECONDS=60); fuzz/README.md says more
fuzz: setup
	./scripts/fuzz $(SECONDS)

setup:
	@./scripts/setup

clean:
	cargo clean
	rm -rf out
