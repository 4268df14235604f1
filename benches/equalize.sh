#!/usr/bin/env bash
# The equalizer over two unshaped veth links between two namespaces, which go at exit. PARTS (default: all):
#   bytes    shares of bytes under one TCP stream with segmentation offload, weights changed live, retransmissions
#   packets  the same with interleave = true, shares of packets
#   change   time from `pleach weights` until the device counters show the new shares
#   cost     nanoseconds a packet in the BPF program, by the kernel's own account
#   speed    Gbit/s of one TCP flow; of the bare link beside it
#   outage   time until a link that has lost its carrier, is switched off or vanishes is left out, and until it is taken in again
#   auto     goodput with automatic weights and with equal ones while background changes every 20 s (R-NAT-10); 2 × 10 Mbit/s.
#            SEED=n: eight random backgrounds of random length instead; CC=reno: that congestion control
#   delays   goodput of one TCP flow over 10 and 90 ms, 10 Mbit/s each, from its first second on, by SPREADS: packet (what TEQL does with
#            links of one rate), turns (the same dealt by nftables), 80ms (flowlets), flow, named (packets of the quick link held, a
#            host named that is asked), delay (the same, whom to ask known from a flow before), first (the same without one before)
#            FLOW_RUNS=n fresh daemons and flows each; medians. CC=reno: that congestion control. DELAY=ms: the slow link's;
#            RACK=0, REORDERING=n: net.ipv4.tcp_recovery, tcp_max_reordering of the sender, for kernels as of the paper's time
#   holding  UDP with segmentation offload over the bare veth links, as fast as it goes, without and with packets of one waiting for
#            5 ms: Gbit/s, and what the daemon takes of a processor
#   BACKEND=clsact|nft: that back end
set -euo pipefail
bin=${PLEACH_BIN:-$(dirname "$0")/../target/release/pleach}
seconds=${SECONDS_EACH:-4}
runs=${RUNS:-5}
work=$(mktemp -d)
host=ple-h-$$
peer=ple-p-$$
pids=()

cleanup() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    [ -z "${stats_before:-}" ] || sysctl -qw kernel.bpf_stats_enabled="$stats_before"
    ip netns del "$host" 2>/dev/null || true
    ip netns del "$peer" 2>/dev/null || true
    [ -z "${wire:-}" ] || ip netns del "$wire" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
in_host() { ip netns exec "$host" "$@"; }
in_peer() { ip netns exec "$peer" "$@"; }

ip netns add "$host"
ip netns add "$peer"
ip -n "$host" link set lo up
ip -n "$peer" link set lo up
for n in 0 1; do
    # Both ends by one index: the kernel takes its time to tell of the carrier of a real device, whose index is no other's.
    ip link add "l$n" index "5$n" netns "$host" type veth peer name "r$n" index "5$n" netns "$peer"
    ip -n "$host" address add "10.1$n.0.1/24" dev "l$n"
    ip -n "$peer" address add "10.1$n.0.2/24" dev "r$n"
    ip -n "$host" link set "l$n" up
    ip -n "$peer" link set "r$n" up
done
ip -n "$peer" address add 10.20.0.1/32 dev lo
in_peer sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.r0.rp_filter=0 net.ipv4.conf.r1.rp_filter=0
# A veth hands a packet to the processor it was sent on, and TCP sends on several by turns: without this the test world itself
# puts packets out of order. Now one processor takes in all, in the order they were sent in.
for n in 0 1; do in_peer sh -c "echo 1 >/sys/class/net/r$n/queues/rx-0/rps_cpus"; done

# start 'TOML of [equalizer]' [TOML of each link]
start() {
    printf 'mode = "equalize"\n[equalizer]\ndestinations = ["10.20.0.0/16"]\ncontrol = "%s/e.sock"\nbackend = "%s"\n%b\n' "$work" "${BACKEND:-auto}" "$1" >"$work/e.toml"
    for n in 0 1; do
        printf '[[link]]\nname = "l%s"\ndevice = "l%s"\nnext_hop = "10.1%s.0.2"\n%b\n' "$n" "$n" "$n" "${2:-}" >>"$work/e.toml"
    done
    # Not by a function, whose process would be another.
    ip netns exec "$host" "$bin" equalize "$work/e.toml" 2>>"$work/e.log" &
    daemon=$!
    pids+=("$daemon")
    for _ in $(seq 100); do
        [ "$("$bin" status --control "$work/e.sock" 2>/dev/null | grep -c ' up ')" = 2 ] && return
        sleep 0.05
    done
    echo "the equalizer does not start:" >&2
    cat "$work/e.log" >&2
    exit 1
}
stop() {
    kill "$daemon"
    wait "$daemon" || true
}
set_weights() { "$bin" weights --control "$work/e.sock" "l0=$1" "l1=$2"; }
# server: for one client; serves in the background.
server() {
    in_peer iperf3 -s -1 >/dev/null &
    pids+=("$!")
    for _ in $(seq 100); do in_peer ss -Hltn 'sport = :5201' | grep -q . && break; sleep 0.02; done
}
# shares FIELD: of l0 as the equalizer counted since the last change.
share() {
    "$bin" status --json --control "$work/e.sock" |
        python3 -c "import json,sys; print(json.load(sys.stdin)['splitter']['links']['l0']['$1'])"
}
# counters: packets and bytes each device has sent, of l0 and l1.
counters() { in_host awk '/^ *l[01]:/ { sub(/:/, " "); print $1, $12, $11 }' /proc/net/dev; }

# stream FILE SECONDS RATE: one TCP flow in the background, its pid in $flow.
stream() {
    server
    ip netns exec "$host" iperf3 -c 10.20.0.1 -t "$2" -b "$3" -J >"$1" &
    flow=$!
}
# One stream of RATE through four weights: those of the list, or 1:1 again and again, which takes as many programs but changes nothing.
# Prints its retransmissions; shares go to a file.
through() { # FIELD RATE changed|same
    stream "$work/stream.json" $((seconds * 4 + 4)) "$2"
    for pair in "3 1" "1 1" "1 4" "100 7"; do
        [ "$3" = changed ] || pair="1 1"
        read -r a b <<<"$pair"
        set_weights "$a" "$b"
        sleep "$seconds"
        share "$1" | awk -v a="$a" -v b="$b" -v what="$1" \
            '{ wanted = a / (a + b); printf "  %3d:%-2d  %s of l0 %.4f, wanted %.4f, off by %.2f %%\n", a, b, what, $1, wanted, 100 * ($1 - wanted) }' >>"$work/shares.$3"
    done
    wait "$flow"
    python3 -c "import json,sys; print(json.load(open(sys.argv[1]))['end']['sum_sent']['retransmits'])" "$work/stream.json" >>"$work/retransmissions.$3"
}
live() { # FIELD RATE
    rm -f "$work"/shares.* "$work"/retransmissions.*
    for _ in $(seq "$runs"); do
        for what in changed same; do through "$1" "$2" "$what"; done
    done
    tail -n 4 "$work/shares.changed"
    for what in changed same; do
        sort -n "$work/retransmissions.$what" | awk -v what="$what" \
            '{ all[NR] = $1; text = text " " $1 } END { printf "  retransmissions, weights %-8s median %g of%s\n", what ":", (all[int((NR + 1) / 2)] + all[int(NR / 2) + 1]) / 2, text }'
    done
}

for part in ${PARTS:-bytes packets change cost speed outage auto holding delays}; do
    echo "$part"
    case $part in
    bytes)
        start 'weights = "fixed"'
        live share_bytes "${RATE:-1G}"
        stop
        ;;
    packets)
        start 'weights = "fixed"\ninterleave = true'
        live share_packets "${RATE:-50M}"
        stop
        ;;
    change)
        start 'weights = "fixed"\ninterleave = true'
        set_weights 1 4
        in_host python3 "$(dirname "$0")/equalize.py" change "$bin" "$work/e.sock"
        stop
        ;;
    cost)
        start 'weights = "fixed"\ninterleave = true'
        stats_before=$(sysctl -n kernel.bpf_stats_enabled)
        in_host python3 "$(dirname "$0")/equalize.py" cost "$daemon" "$seconds"
        stop
        ;;
    speed)
        for way in "10.10.0.2 bare" "10.20.0.1 equalized"; do
            read -r address name <<<"$way"
            [ "$name" = bare ] || start 'weights = "fixed"'
            server
            in_host iperf3 -c "$address" -t "$seconds" -f m | awk -v n="$name" '/receiver/ { printf "  %-9s one TCP flow %6.2f Gbit/s\n", n, $7 / 1000 }'
        done
        stop
        ;;
    outage)
        start 'weights = "fixed"'
        in_host python3 "$(dirname "$0")/equalize.py" outage "$work/e.sock" "$host" "$peer"
        stop
        ;;
    delays)
        # A namespace between the two, in which a program holds frames back.
        wire=ple-w-$$
        ip netns add "$wire"
        for n in 0 1; do
            ip -n "$host" link delete "l$n"
            ip link add "l$n" netns "$host" type veth peer name "m$n" netns "$wire"
            ip link add "n$n" netns "$wire" type veth peer name "r$n" netns "$peer"
            ip -n "$host" address add "10.1$n.0.1/24" dev "l$n"
            ip -n "$peer" address add "10.1$n.0.2/24" dev "r$n"
            for end in "$host l$n" "$wire m$n" "$wire n$n" "$peer r$n"; do
                read -r space device <<<"$end"
                ip netns exec "$space" sysctl -qw "net.ipv6.conf.$device.disable_ipv6=1"
                ip -n "$space" link set "$device" up
                ip netns exec "$space" python3 "$(dirname "$0")/equalize.py" no_checksums "$device"
            done
            in_peer sysctl -qw "net.ipv4.conf.r$n.rp_filter=0"
            in_host tc qdisc add dev "l$n" root tbf rate 10mbit burst 16kb latency 60ms
        done
        ip netns exec "$wire" python3 "$(dirname "$0")/equalize.py" wire 10 "${DELAY:-90}" >"$work/wire" &
        pids+=("$!")
        # Kept for the next flow, the last one's disorder would be known from the beginning.
        in_host sysctl -qw net.ipv4.tcp_no_metrics_save=1
        [ -z "${RACK:-}" ] || in_host sysctl -qw net.ipv4.tcp_recovery="$RACK"
        [ -z "${REORDERING:-}" ] || in_host sysctl -qw net.ipv4.tcp_max_reordering="$REORDERING"
        for _ in $(seq 100); do grep -q ready "$work/wire" && break; sleep 0.05; done
        for spread in ${SPREADS:-packet turns 80ms flow named delay first}; do
            rm -f "$work/flows"
            for _ in $(seq "${FLOW_RUNS:-3}"); do
                case $spread in
                turns) BACKEND=nft start 'weights = "fixed"\ninterleave = true' ;;
                named) start 'weights = "fixed"\ninterleave = true\nspread = "delay"\nprobe = "10.20.0.1"' && sleep 1 ;;
                delay | first) start 'weights = "fixed"\ninterleave = true\nspread = "delay"' ;;
                *) start "weights = \"fixed\"\ninterleave = true\nspread = \"$spread\"" ;;
                esac
                [ "$spread" != delay ] || in_host python3 "$(dirname "$0")/equalize.py" flow "$peer" 1 cubic >/dev/null
                in_host python3 "$(dirname "$0")/equalize.py" flow "$peer" "${FLOW_SECONDS:-15}" "${CC:-cubic}" >>"$work/flows"
                stop
            done
            python3 "$(dirname "$0")/equalize.py" flows "$spread" "${CC:-cubic}" <"$work/flows"
        done
        ;;
    holding)
        in_peer sysctl -qw net.ipv4.icmp_echo_ignore_all=1
        # Not by a function, whose process would be another.
        ip netns exec "$peer" python3 "$(dirname "$0")/equalize.py" answers r0 0 r1 5 &
        pids+=("$!")
        for spread in packet delay; do
            start "weights = \"fixed\"\nspread = \"$spread\"$([ "$spread" = packet ] || echo '\nprobe = "10.20.0.1"')"
            set_weights 1000 1
            sleep 1
            in_host python3 "$(dirname "$0")/equalize.py" pour "$daemon" "$seconds" "$spread"
            [ "$spread" = packet ] || "$bin" status --control "$work/e.sock" | grep -E '^l[01].*%|delays are'
            stop
        done
        in_peer sysctl -qw net.ipv4.icmp_echo_ignore_all=0
        ;;
    auto)
        for n in 0 1; do in_host tc qdisc add dev "l$n" root tbf rate 10mbit burst 16kb latency 50ms; done
        for weights in auto fixed; do
            start "weights = \"$weights\"" 'rate = "10Mbit"'
            in_host python3 "$(dirname "$0")/equalize.py" background "$peer" "$weights" "${STEP_SECONDS:-20}" "${SEED:-}" "${CC:-cubic}"
            stop
        done
        for n in 0 1; do in_host tc qdisc del dev "l$n" root; done
        ;;
    esac
done
