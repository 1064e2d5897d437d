#!/bin/bash
# Installs what a purpose needs and this machine lacks, as root from Debian's
# packages; does nothing and says nothing when nothing is missing.
#
#   .ci/install-deps.sh build|demo|test|bench|soak …
#
# A compiler: 1.90 or newer counts, wherever it comes from (rustup's comes
# first in PATH). Debian 12 has one as rustc-web, new enough in bookworm-security
# and without clippy; later releases have rustup.
set -euo pipefail

RUST_MIN=1.90
export PATH="$HOME/.cargo/bin:$PATH"

# PROGRAM-OR-FILE:PACKAGE, for each purpose; read by name below
# shellcheck disable=SC2034
{
	needs_build="cc:gcc ld:binutils /usr/include/stdio.h:libc6-dev make:make protoc:protobuf-compiler /usr/include/google/protobuf/descriptor.proto:libprotobuf-dev"
	needs_demo="fio:fio setpriv:util-linux"
	needs_programs="python3:python3 git:git rsync:rsync mpicc:libopenmpi-dev mpirun:openmpi-bin /usr/lib/postgresql/*/bin/pg_amcheck:postgresql ipcrm:util-linux"
	needs_test="fio:fio g++:g++ gfortran:gfortran nm:binutils diodls:diod qemu-system-x86_64:qemu-system-x86 busybox:busybox-static xz:xz-utils mkfs.ext4:e2fsprogs join:coreutils timeout:coreutils stress-ng:stress-ng flock:util-linux setpriv:util-linux etcd:etcd-server slurmctld:slurm-wlm munged:munge /usr/include/slurm/spank.h:libslurm-dev gcc:gcc prometheus:prometheus influxd:influxdb collectd:collectd-core chromium:chromium chromedriver:chromium-driver python3:python3-venv $needs_programs"
	needs_soak="stress-ng:stress-ng timeout:coreutils $needs_programs"
	needs_bench="diod:diod ganesha.nfsd:nfs-ganesha /usr/lib/*/ganesha/libfsalvfs.so:nfs-ganesha-vfs unshare:util-linux ip:iproute2 fio:fio find:findutils tar:tar sshfs:sshfs sshd:openssh-server ssh-keygen:openssh-client glusterfsd:glusterfs-server glusterfs:glusterfs-client mpirun:openmpi-bin slurmctld:slurm-wlm munged:munge /usr/include/slurm/spank.h:libslurm-dev"
}

die() { echo "install-deps: $1" >&2; exit 1; }

updated=
update() {
	[ -z "$updated" ] || return 0
	apt-get -q update >/dev/null || echo "install-deps: apt-get update failed; trying with the lists that are here" >&2
	updated=1
}

install() {
	command -v apt-get >/dev/null || die "missing: $*; install them with this system's package manager"
	[ "$(id -u)" = 0 ] || die "missing: $*; as root: apt-get install --no-install-recommends $*"
	update
	echo "installing $*"
	without_services env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get -qq install -y --no-install-recommends "$@" >/dev/null ||
		die "cannot install $*"
}

# without_services COMMAND…: servers among the packages are only wanted as programs; none is started
without_services() {
	local policy=/usr/sbin/policy-rc.d rc=0
	[ ! -e $policy ] || { "$@"; return; }
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod 755 $policy
	trap "rm -f $policy" EXIT
	"$@" || rc=$?
	rm -f $policy
	trap - EXIT
	return $rc
}

present() {
	case $1 in
	/*) compgen -G "$1" >/dev/null ;;
	*) command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] ;;
	esac
}

# new_enough PROGRAM: `cargo 1.95.0 (…)` is, 1.63 is not
new_enough() {
	local version
	version=$("$1" --version 2>/dev/null | sed -nE 's/^[a-z]+ ([0-9]+\.[0-9]+).*/\1/p')
	[ -n "$version" ] && [ "$(printf '%s\n' "$RUST_MIN" "$version" | sort -V | head -n 1)" = "$RUST_MIN" ]
}

# offers PACKAGE [VERSION]: apt would install it, in that version or a newer one
offers() {
	local version
	version=$(apt-cache policy "$1" 2>/dev/null | sed -nE 's/^ *Candidate: ([0-9].*)/\1/p')
	[ -n "$version" ] && dpkg --compare-versions "$version" ge "${2:-0}"
}

rust() {
	if new_enough cargo && new_enough rustc; then return; fi
	if command -v rustup >/dev/null; then
		rustup toolchain install stable --profile default && new_enough cargo && return
	fi
	if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
		update
		if offers rustc-web "$RUST_MIN"; then
			install cargo-web rustc-web rustfmt-web
		elif offers rustup; then
			install rustup
			rustup default stable
		fi
	fi
	new_enough cargo && new_enough rustc ||
		die "cargo and rustc $RUST_MIN or newer are needed: rustup has them, and on Debian 12 bookworm-security as cargo-web and rustc-web"
}

# schemathesis is in no release of Debian; it lives in a place of its own below .cache
schemathesis() {
	local venv version=4.32.0
	venv=$(dirname "$0")/../.cache/schemathesis
	if [ "$("$venv/bin/st" --version 2>/dev/null)" = "st, version $version" ]; then return; fi
	echo "installing schemathesis $version"
	rm -rf "$venv"
	python3 -m venv "$venv" 2>/dev/null || { install python3-venv && python3 -m venv "$venv"; } ||
		die "cannot make a place for schemathesis in $venv"
	"$venv/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$version" ||
		die "cannot install schemathesis $version with pip"
}

missing=()
for purpose in "$@"; do
	names=needs_$purpose
	[ -n "${!names:-}" ] || die "no purpose \"$purpose\""
	read -ra needs <<<"${!names}"
	for need in "${needs[@]}"; do
		present "${need%%:*}" || missing+=("${need##*:}")
	done
done
if [ ${#missing[@]} -gt 0 ]; then install "${missing[@]}"; fi
rust
# the guest's kernel is downloaded by apt, which needs its lists
case " $* " in
*" test "*)
	schemathesis
	if [ "$(id -u)" = 0 ] && ! apt-cache depends linux-image-amd64 >/dev/null 2>&1; then update; fi
	;;
esac
