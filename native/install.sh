#!/bin/bash
# Installs the library of `make build` with its headers, modules and pkg-config file.
#
#   native/install.sh PREFIX      such as /usr/local; DESTDIR is put before it
#
#   PREFIX/lib/libsluice.so.0, libsluice.so    PREFIX/include/sluice.h, sluice.hpp, sluice.f90
#   PREFIX/lib/pkgconfig/sluice.pc             PREFIX/lib/python3/site-packages/sluice
set -euo pipefail
[[ $# = 1 && $1 = /* ]] || { echo "usage: native/install.sh PREFIX, an absolute path" >&2; exit 2; }
cd "$(dirname "$0")"
library=${CARGO_TARGET_DIR:-../target}/release/libsluice.so
[ -e "$library" ] || { echo "install: no $library; run make build first" >&2; exit 1; }
to=${DESTDIR:-}$1
version=$(sed -nE 's/^version = "(.*)"/\1/p' ../Cargo.toml)

install -D -m 644 -s "$library" "$to/lib/libsluice.so.0"
ln -sf libsluice.so.0 "$to/lib/libsluice.so"
install -D -m 644 -t "$to/include" library/include/sluice.h library/include/sluice.hpp fortran/sluice.f90
install -D -m 644 -t "$to/lib/python3/site-packages/sluice" python/sluice/__init__.py
mkdir -p "$to/lib/pkgconfig"
cat >"$to/lib/pkgconfig/sluice.pc" <<END
prefix=$1
Name: sluice
Description: Reservations of storage bandwidth for programs
Version: $version
Libs: -L\${prefix}/lib -lsluice
Cflags: -I\${prefix}/include
END
