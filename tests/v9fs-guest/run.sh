#!/bin/bash
# Mounts a 9P2000.L server with the Linux kernel's own client (v9fs) in a small
# virtual machine, runs file operations there, and says how they went.
#
#   VM_CACHE=DIR run.sh ADDRESS PORT ANAME
#
# ADDRESS  127.0.0.1 or localhost: the guest reaches it as 10.0.2.2 through
#          qemu's user-mode network (no packet leaves this machine).
#          A path: a Unix socket (PORT is then ignored, give 0). qemu connects to
#          it once, at its start: one mount to a boot.
# ANAME    as for mount -o aname=
#
# Exit status: 0 all passed (or failed only as VM_ALLOW says), 1 a test failed or
# the mount did, 2 something is missing here, 3 the guest did not finish.
#
# Environment:
#   VM_CACHE    folder for kernel, modules, busybox, initramfs (required; about 80 MB)
#   VM_MSIZE    msize of the mount                    [131072]
#   VM_UNAME    uname= of the mount's own Tattach (v9fs sends n_uname -1 with it);
#               empty: the kernel's own, nobody       [root]
#   VM_HOSTNAME the guest's name: v9fs sends it in Tlock, and NFS-Ganesha refuses
#               locks if it can't resolve it          [localhost]
#   VM_OPTS     more mount options, a comma before    []
#   VM_CACHEMODE  cache= of the mount                 [none]
#   VM_TESTS    only these tests, comma separated     [all]
#   VM_ALLOW    tests that may fail, comma separated  []
#   VM_BENCH    1: also rates, on one line            [0]
#   VM_CMD      a file to run in the guest instead of the tests (busybox sh; it
#               finds the mount at /mnt; its exit status is the result)
#   VM_AFTER    a command that runs in the guest after the tests; its lines of
#               `ok` and `not ok` count as theirs                              []
#   VM_EXTRA    a folder that is copied to /extra in the guest (static programs)
#   VM_ACCEL    tcg, kvm, or auto: kvm if the kernel boots under it (tried once
#               for each VM_CACHE; /dev/kvm may be there and not work)  [auto]
#   VM_SMP      virtual CPUs                          [1]
#   VM_TIMEOUT  seconds for the whole run             [600]
#   VM_LOG      where the console goes too            [VM_CACHE/last-console.log]
#   VM_KERNEL   Debian package of the kernel          [what linux-image-amd64 depends on]
#
# Needs: qemu-system-x86_64 (apt-get install --no-install-recommends qemu-system-x86),
# gcc with static libc, and an apt that can download. Root is not needed.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

die() { echo "v9fs-guest: $2" >&2; exit "$1"; }
[ $# -eq 3 ] || die 2 "usage: VM_CACHE=DIR run.sh ADDRESS PORT ANAME"
ADDRESS=$1 PORT=$2 ANAME=$3
: "${VM_CACHE:?a folder for kernel and initramfs}" "${VM_MSIZE:=131072}" "${VM_OPTS:=}" "${VM_CACHEMODE:=none}"
: "${VM_UNAME=root}" "${VM_HOSTNAME:=localhost}" "${VM_TESTS:=}" "${VM_ALLOW:=}" "${VM_BENCH:=0}" "${VM_CMD:=}" "${VM_AFTER:=}" "${VM_EXTRA:=}" "${VM_ACCEL:=auto}"
: "${VM_SMP:=1}" "${VM_TIMEOUT:=600}" "${VM_LOG:=$VM_CACHE/last-console.log}" "${VM_KERNEL:=}"
command -v qemu-system-x86_64 >/dev/null || die 2 "no qemu-system-x86_64: apt-get install --no-install-recommends qemu-system-x86"
command -v gcc >/dev/null || die 2 "no gcc"
mkdir -p "$VM_CACHE"
VM_CACHE=$(cd "$VM_CACHE" && pwd)
WORK=$(mktemp -d "$VM_CACHE/work.XXXXXX")
trap 'rm -rf "$WORK"' EXIT

# ---- kernel, modules and busybox, from Debian's packages; once ----

MODULES="virtio_pci virtio_net 9pnet_fd 9p"

build_cache() {
	local pkg=$VM_KERNEL dl=$WORK/dl mod
	mkdir -p "$dl" "$WORK/new/modules"
	if [ -z "$pkg" ]; then
		pkg=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-6[^ ]*\).*/\1/p' | head -1) || true
	fi
	[ -n "$pkg" ] || die 2 "apt knows no linux-image-amd64: run apt-get update"
	# as root, apt warns that its own user can't write here; it downloads all the same
	(cd "$dl" && apt-get -q download "$pkg" busybox-static >&2) || die 2 "apt-get download failed: run apt-get update"
	dpkg-deb --fsys-tarfile "$dl"/busybox-static_*.deb | tar -xO ./bin/busybox >"$WORK/new/busybox"
	chmod 755 "$WORK/new/busybox"
	# a stream of a big archive: take what we want in one pass
	dpkg-deb --fsys-tarfile "$dl"/linux-image-*.deb | tar -x -C "$dl" --wildcards './boot/vmlinuz-*' \
		'*/drivers/virtio/*' '*/drivers/net/virtio_net.ko*' '*/drivers/net/net_failover.ko*' '*/net/core/failover.ko*' \
		'*/net/9p/*' '*/fs/9p/*' '*/fs/netfs/*' '*/fs/fscache/*'
	# booting the kernel unpacked (by its PVH entry) saves half of the boot under TCG
	local at
	at=$(grep -abo -m1 $'\xfd7zXZ' "$dl"/boot/vmlinuz-* | head -1 | cut -d: -f1) || true
	if [ -n "$at" ] && command -v xz >/dev/null; then
		tail -c "+$((at + 1))" "$dl"/boot/vmlinuz-* | xz -dcq --single-stream >"$WORK/new/kernel" 2>/dev/null || true
	fi
	if [ "$(head -c 4 "$WORK/new/kernel" 2>/dev/null | tail -c 3)" != ELF ]; then
		mv "$dl"/boot/vmlinuz-* "$WORK/new/kernel"
	fi
	: >"$WORK/new/order"
	for mod in $MODULES; do add_module "$dl" "$mod"; done
	echo "$pkg" >"$WORK/new/package"
	chmod -R u=rwX,go=rX "$WORK/new"
	rm -rf "$VM_CACHE/kernel"
	mv "$WORK/new" "$VM_CACHE/kernel"
}

# add_module: put a module, after those it needs, into new/modules and new/order
add_module() {
	local f dep
	f=$(find "$1" \( -name "$2.ko" -o -name "${2//_/-}.ko" -o -name "${2//-/_}.ko" \) | head -1)
	[ -n "$f" ] || return 0 # built into the kernel
	grep -qxF "$(basename "$f")" "$WORK/new/order" && return 0
	for dep in $(tr '\0' '\n' <"$f" | sed -n 's/^depends=//p' | tr ',' ' '); do add_module "$1" "$dep"; done
	cp "$f" "$WORK/new/modules/"
	basename "$f" >>"$WORK/new/order"
}

if [ ! -s "$VM_CACHE/kernel/package" ] || { [ -n "$VM_KERNEL" ] && [ "$(cat "$VM_CACHE/kernel/package")" != "$VM_KERNEL" ]; }; then
	build_cache
fi
K=$VM_CACHE/kernel

# ---- initramfs ----

R=$WORK/root
mkdir -p "$R"/{bin,proc,sys,dev,mnt,tmp,modules,etc}
cp "$K/busybox" "$R/bin/busybox"
cp "$K"/modules/*.ko "$R/modules/"
cp "$K/order" "$R/modules/order"
ln -s busybox "$R/bin/sh"
# nobody and tests: what pjdfstest wants
printf '%s:x:%s:%s::/:/bin/sh\n' root 0 0 user 1000 1000 tests 2001 2001 nobody 65534 65534 >"$R/etc/passwd"
printf '%s:x:%s:\n' root 0 user 1000 tests 2001 nobody 65534 >"$R/etc/group"
cp "$HERE/init" "$R/init"
chmod 755 "$R/init"
gcc -O2 -static -o "$R/bin/fstest" "$HERE/fstest.c" || die 2 "fstest.c does not build"
if [ -n "$VM_EXTRA" ]; then cp -r "$VM_EXTRA" "$R/extra"; fi
if [ -n "$VM_CMD" ]; then cp "$VM_CMD" "$R/cmd"; fi

case $ADDRESS in
127.0.0.1 | localhost) GADDR=10.0.2.2 GPORT=$PORT FWD= ;;
*/*) GADDR=10.0.2.100 GPORT=564 FWD=",guestfwd=tcp:10.0.2.100:564-unix:$ADDRESS" ;;
*) die 2 "ADDRESS must be 127.0.0.1 or a Unix socket's path" ;;
esac
q() { printf "%s='%s'\n" "$1" "${2//\'/\'\\\'\'}"; }
{
	q ADDR "$GADDR"; q PORT "$GPORT"; q ANAME "$ANAME"; q MSIZE "$VM_MSIZE"; q OPTS "$VM_OPTS"
	q CACHEMODE "$VM_CACHEMODE"; q TESTS "$VM_TESTS"; q BENCH "$VM_BENCH"; q AFTER "$VM_AFTER"; q UNAME "$VM_UNAME"; q NAME "$VM_HOSTNAME"
} >"$R/args"
pack() { (cd "$1" && find . | "$K/busybox" cpio -o -H newc 2>/dev/null | gzip -1); }
pack "$R" >"$WORK/initrd.gz"

# ---- boot ----

MACHINE=(-nodefaults -no-user-config -display none -no-reboot -serial stdio -kernel "$K/kernel")
APPEND="console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr random.trust_cpu=on"

# probe_kvm: prints kvm if the guest's kernel reaches its first program under it, else tcg
probe_kvm() {
	local r=$WORK/probe
	mkdir -p "$r/bin"
	cp "$K/busybox" "$r/bin/busybox"
	printf '#!/bin/busybox sh\n/bin/busybox echo V9FS-ALIVE\n/bin/busybox poweroff -f\n' >"$r/init"
	chmod 755 "$r/init"
	pack "$r" >"$WORK/probe.gz"
	# a shell of its own says "Aborted" to nobody
	bash -c 'ulimit -c 0; timeout --foreground -k 2 15 "$@"; true' probe qemu-system-x86_64 -accel kvm -cpu host -m 256 \
		"${MACHINE[@]}" -initrd "$WORK/probe.gz" -append "$APPEND" </dev/null >"$WORK/probe.out" 2>/dev/null || true
	if grep -qa '^V9FS-ALIVE' "$WORK/probe.out"; then
		echo kvm
	else
		echo tcg
	fi
}

if [ "$VM_ACCEL" = auto ]; then
	if [ ! -w /dev/kvm ]; then
		VM_ACCEL=tcg
	else
		[ -s "$VM_CACHE/accel" ] || probe_kvm >"$VM_CACHE/accel"
		VM_ACCEL=$(cat "$VM_CACHE/accel")
	fi
fi
echo "# guest: $(cat "$K/package") under $VM_ACCEL"
case $VM_ACCEL in kvm) CPU=host ;; *) CPU=max ;; esac
SHOW='^(V9FS|ok |not ok |# |fstest:|bench )'
if [ -n "$VM_CMD" ]; then SHOW=''; fi
timeout --foreground -k 10 "$VM_TIMEOUT" qemu-system-x86_64 -accel "$VM_ACCEL" -cpu "$CPU" -smp "$VM_SMP" -m 384 \
	"${MACHINE[@]}" -netdev "user,id=n0,ipv6=off$FWD" -device virtio-net-pci,netdev=n0,romfile= \
	-initrd "$WORK/initrd.gz" -append "$APPEND" \
	</dev/null 2>&1 | tr -d '\r' | tee "$VM_LOG" | grep --line-buffered -aE "$SHOW" || true

if ! grep -qa '^V9FS-END' "$VM_LOG"; then
	echo "v9fs-guest: the guest did not finish (see $VM_LOG)" >&2
	tail -n 15 "$VM_LOG" >&2
	exit 3
fi
grep -qa '^V9FS-MOUNTED' "$VM_LOG" || die 1 "the mount failed"
if [ -n "$VM_CMD" ]; then
	exit "$(sed -n 's/^V9FS-END //p' "$VM_LOG" | head -1)"
fi
if grep -aE 'BUG:|Oops|WARNING: CPU|general protection' "$VM_LOG" >&2; then die 1 "the guest's kernel complained"; fi
bad=0
for t in $(sed -n 's/^not ok \([^ ]*\).*/\1/p' "$VM_LOG"); do
	case ",$VM_ALLOW," in
	*",$t,"*) echo "v9fs-guest: $t failed, as allowed" ;;
	*) bad=1 ;;
	esac
done
grep -qaE '^fstest: [0-9]+ passed' "$VM_LOG" || bad=1
exit "$bad"
