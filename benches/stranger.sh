#!/usr/bin/env bash
# A stranger sends 100 000 random datagrams in 2 s to the gateway while one TCP flow runs through the tunnel, paced to
# 200 Mbit/s by the user's limit. Prints the flow's rate without and with the stranger, and what the gateway dropped.
limit='upload = "200Mbit"'
# shellcheck source=benches/lib.sh
. "$(dirname "$0")/lib.sh"
seconds=2

# Random lengths up to 1400 bytes; every second datagram begins like one of ours.
flood() {
    in_client perl -MSocket -MTime::HiRes=time,sleep -e '
        socket(my $s, PF_INET, SOCK_DGRAM, 0) or die;
        my $to = sockaddr_in(7700, inet_aton("10.100.0.1"));
        my ($start, $sent, $count) = (time, 0, 100000);
        srand(1);
        my $noise = join "", map { pack "N", int rand 2**32 } 1 .. 1000;
        while ($sent < $count) {
            my $due = int((time - $start) / 2 * $count);
            $due = $count if $due > $count;
            while ($sent < $due) {
                my $datagram = substr $noise, int rand 2500, 20 + int rand 1380;
                substr($datagram, 0, 1) = chr(1 + $sent % 5) if $sent % 2;
                send $s, $datagram, 0, $to;
                $sent++;
            }
            sleep 0.0005;
        }'
}

: >"$work/alone" && : >"$work/flooded"
for _ in 1 2 3 4 5; do
    tcp 10.77.0.1 >>"$work/alone"
    flood &
    flood_pid=$!
    tcp 10.77.0.1 >>"$work/flooded"
    wait "$flood_pid"
done
alone=$(median <"$work/alone")
flooded=$(median <"$work/flooded")
awk -v a="$alone" -v f="$flooded" 'BEGIN { printf "one TCP flow: alone %.0f Mbit/s, beside 50 000 random datagrams/s %.0f Mbit/s: %.1f %% less (medians of 5)\n", a, f, 100 * (a - f) / a }'
echo "dropped by the gateway: $(in_gateway "$bin" status --json --control "$work/g.sock" | sed -n '/"drops"/,/}/p' | grep -v ': 0' | tr -d ' \n' | sed 's/"drops":{//; s/},*//')"
