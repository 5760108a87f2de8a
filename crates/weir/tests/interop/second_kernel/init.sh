#!/bin/sh
# First process of the second kernel: WHERE is replaced by the folder shared with the test that boots it.
exec >WHERE/console 2>&1 </dev/null
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/tmp
# Modules are asked for as they are needed; they are not where modprobe looks by itself.
echo WHERE/modprobe >/proc/sys/kernel/modprobe
WHERE/modprobe ipv6
# A kernel that is killed leaves what was written.
while sleep 2; do sync; done &
. WHERE/tests >WHERE/report 2>&1
echo "ended: $?" >>WHERE/report
sync
echo o >/proc/sysrq-trigger
sleep 60
