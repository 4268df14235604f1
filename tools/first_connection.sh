#!/usr/bin/env bash
# A first connection between two clean Debian roots in which nothing but the .deb and what it recommends is installed: gateway
# init, invite, join, a download over both links, one of which fails, leave, remove. Called by ./dev package.
#
# tools/first_connection.sh BASE DEB    BASE: tar of a minimal Debian root; DEB: the package of pleach. Needs root and iperf3.
#
# The commands run in the roots; the network, namespaces and iperf3 are those of this machine. There is no systemd, so this
# script starts the daemons, with the command lines that the commands print.
set -euo pipefail
base=$(realpath "$1")
deb=$(realpath "$2")
work=$(mktemp -d)
server=plf-s-$$
client=plf-c-$$
lan=plf-l-$$
pids=()

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

cleanup() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    ip netns del "$server" 2>/dev/null || true
    ip netns del "$client" 2>/dev/null || true
    ip netns del "$lan" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

fail() {
    say "FAILED: $*"
    tail -n 20 "$work"/*.log >&2 || true
    exit 1
}

# Makes a root and installs the package as a user would, from this machine's mirror.
install_root() {
    local root=$work/$1
    mkdir "$root"
    tar -C "$root" -xf "$base"
    cp -r /etc/apt/. "$root/etc/apt/"
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    cp "$deb" "$root/pleach.deb"
    chroot "$root" sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq /pleach.deb' \
        >"$work/$1-install.log" 2>&1 || fail "the package cannot be installed"
}

# Runs a command in the root and the namespace of a host, with mounts that end with the command.
on() {
    local name=$1 root=$work/$2
    shift 2
    # shellcheck disable=SC2016
    ip netns exec "$name" unshare -m sh -c '
        mount -t proc proc "$0/proc" && mount -t sysfs sysfs "$0/sys" && mount --rbind /dev "$0/dev" || exit 70
        exec chroot "$0" "$@"' "$root" "$@"
}
on_server() { on "$server" server "$@"; }
on_client() { on "$client" client "$@"; }

wait_for() {
    local what=$1
    shift
    for _ in $(seq 100); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    fail "$what: not within 20 s"
}

# Mbit/s of a download through the tunnel from the gateway's inner address.
download() {
    ip netns exec "$server" iperf3 -s -1 >/dev/null &
    pids+=("$!")
    wait_for "iperf3 listens" sh -c "ip netns exec $server ss -Hltn 'sport = :5201' | grep -q ."
    ip netns exec "$client" iperf3 -R -c "$1" -t 8 -O 2 -f m | awk '/receiver/ { print $7 }'
}

ip netns add "$server"
ip netns add "$client"
ip -n "$server" link set lo up
ip -n "$client" link set lo up
ip -n "$server" address add 203.0.113.5/32 dev lo
number=0
for link in dsl lte; do
    number=$((number + 1))
    ip link add "$link" netns "$client" type veth peer name "$link" netns "$server"
    ip -n "$client" address add "10.9.$number.2/24" dev "$link"
    ip -n "$server" address add "10.9.$number.1/24" dev "$link"
    for name in "$client" "$server"; do
        ip -n "$name" link set "$link" up
        ip netns exec "$name" tc qdisc add dev "$link" root tbf rate 20mbit burst 5kb latency 50ms
    done
    ip -n "$client" route add default via "10.9.$number.1" dev "$link" metric "${number}00"
done

say "installing $(basename "$deb") in two clean Debian roots"
install_root server
install_root client

on_server pleach gateway init --endpoint 203.0.113.5 >"$work/init.log" 2>&1 || fail "pleach gateway init"
on_server pleach up /etc/pleach/gateway.toml >"$work/gateway.log" 2>&1 &
pids+=("$!")
wait_for "the gateway runs" on_server pleach status
on_server pleach gateway invite home >"$work/token" 2>"$work/invite.log" || fail "pleach gateway invite"
on_client pleach join <"$work/token" >"$work/join.log" 2>&1 || fail "pleach join"
on_client pleach up /etc/pleach/client.toml >"$work/client.log" 2>&1 &
daemon=$!
pids+=("$daemon")
address=$(sed -n 's/^address = \["\([0-9.]*\)\/.*/\1/p' "$work/server/etc/pleach/gateway.toml")
wait_for "the gateway answers at $address" ip netns exec "$client" ping -c 1 -W 1 "$address"

both=$(download "$address")
awk -v both="$both" 'BEGIN { exit !(both > 25) }' || fail "a download got $both Mbit/s over two links of 20 Mbit/s"
on_client pleach status >"$work/status.log" 2>&1 || fail "pleach status"
ip -n "$server" link set lte down
wait_for "the gateway answers over the other link" ip netns exec "$client" ping -c 1 -W 1 "$address"
one=$(download "$address")
awk -v one="$one" 'BEGIN { exit !(one > 12) }' || fail "a download got $one Mbit/s over the remaining link of 20 Mbit/s"

# A LAN behind the client, as in docs/onboarding.md, "A router with a LAN".
ip netns add "$lan"
ip link add eth0 netns "$lan" type veth peer name lan netns "$client"
ip -n "$lan" address add 192.168.1.10/24 dev eth0
ip -n "$lan" link set eth0 up
ip -n "$lan" route add default via 192.168.1.1
ip -n "$client" address add 192.168.1.1/24 dev lan
ip -n "$client" link set lan up
ip netns exec "$client" sysctl -qw net.ipv4.ip_forward=1
ip netns exec "$client" nft add table ip lan
ip netns exec "$client" nft 'add chain ip lan post { type nat hook postrouting priority 100; }'
ip netns exec "$client" nft add rule ip lan post oifname pleach0 masquerade
wait_for "the gateway answers a host behind the client" ip netns exec "$lan" ping -c 1 -W 1 "$address"

on_client pleach leave >"$work/leave.log" 2>&1 || fail "pleach leave"
wait_for "the daemon of the client ends" sh -c "! kill -0 $daemon"
[ -z "$(ip -n "$client" rule show | grep -vE '^(0|32766|32767):')" ] || fail "rules are left: $(ip -n "$client" rule show)"
[ ! -e "$work/client/etc/pleach/client.toml" ] || fail "pleach leave has left client.toml"
on_server pleach gateway remove home >"$work/remove.log" 2>&1 || fail "pleach gateway remove"
say "first connection in two clean Debian roots: $both Mbit/s over two links of 20 Mbit/s, $one after one of them failed, a LAN behind the client, nothing left"
