"""MPI programs through Debian's Open MPI: blocks.c, whose four ranks go round the ways of the place.

IOR and mdtest are in neither Debian nor a registry, so blocks.c is ours: the
same shapes (one file for all or one for each, 1 MiB and 47008 bytes, the size
that is no multiple of a page, independent, collective and without MPI-IO), and
like them it checks every byte, of what another rank wrote.
"""

import os

from work import equal, run as command

NEEDS = [("mpicc", "libopenmpi-dev"), ("mpirun", "openmpi-bin")]
SHORT = ["two", "homes"]
RANKS = 4
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # one machine, no network: nothing listens and nobody is asked
    "OMPI_MCA_btl": "self,vader", "OMPI_MCA_pml": "ob1", "OMPI_MCA_plm_rsh_agent": "false",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
}


def run(work):
    program = f"{work.scratch}/blocks"
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "blocks.c")
    command("mpicc", "-O1", "-Wall", "-Wextra", "-o", program, source)
    counts = ((1 << 20, 40), (47008, 500)) if work.is_long else ((1 << 20, 4), (47008, 30))
    shapes = [(size, count, where, how) for size, count in counts for where in ("shared", "own")
              for how in ("independent", "collective", "posix")]
    if not work.is_long:
        # a file of one's own has one rank: together is alone
        shapes = [shape for shape in shapes if shape[2:] != ("own", "collective")]
    for io in ("ompio", "romio321") if work.is_long else ("ompio",):
        for size, count, where, how in shapes:
            if how == "posix" and io != "ompio":
                continue
            with work.check(f"mpi-{io if how != 'posix' else 'no'}-{where}-{how}-{size}"):
                start(work, program, io, str(size), str(count), where, how)
    with work.check("mpi-tree"):
        start(work, program, "ompio", str(2000 if work.is_long else 100), "tree")


def start(work, program, io, *words):
    """In a folder of its own: what is removed and made anew is a check of names.py."""
    folder = "-".join((io,) + words)
    os.mkdir(f"{work.at(0)}/{folder}")
    ways = [f"{way}/{folder}" for way in work.folders]
    environment = {**ENVIRONMENT, "OMPI_MCA_io": io, "OMPI_MCA_orte_tmpdir_base": work.scratch,
                   "TMPDIR": work.scratch}
    text = command("mpirun", "-np", str(RANKS), program, *ways, "--", *words, env=environment,
                   cwd=work.scratch)
    equal(text.strip(), "blocks: right", "what it says")
