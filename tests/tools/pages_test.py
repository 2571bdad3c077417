"""Runs the commands that the pages for users show, as a reader would: each must end with 0.

    pages_test.py SOURCE_FOLDER TOOL CMAKE BUILD_FOLDER

A command is a line of a code block that begins with a known program. The commands run in a copy of the
folders that they name, where ./dev finds the finished build. A command that names things of the reader's
gets the test's own in their place; a command that no rule knows fails where it needs them.
"""
import os, pathlib, re, shutil, socket, subprocess, sys, tempfile

PAGES = ["README.md", "tools/USAGE.md", "tools/LOSS_TARGET.md", "collectives/USAGE.md"]
COMMAND = re.compile(r"(host\d\$ )?(\./dev|tarpon|export|cmake|mpirun) ")
LONGEST_S = 120

# The reader's own things, and those of the test.
STAND_INS = [("'in/rank{rank}.npy'", "'tools/demo/step100-rank{rank}.npy'"), ("'out/", "'"),
             (" -e 64M", " -e 1M"), (" -b 25M -e 25M", " -b 1M -e 1M"), ("./program", "true"),
             ("flight DIR", "flight recordings"), ("/opt/tarpon", "prefix")]
# Beginnings of commands that other tests run.
ELSEWHERE = {"./dev test": "it runs this test", "tarpon doctor eth0": "doctor_command_test",
             "tarpon xdp ": "xdp_command_test"}
NEEDS_ROOT = ("--net veth", "tarpon testbed")


def commands(page):
    """Those of the code blocks without a language, comments removed, long lines joined."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for block in re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if COMMAND.match(line):
                yield re.sub(r"\s+# .*", "", line).strip()


def folder_of_reader(source, tool, cmake):
    """What a reader has after ./dev build, and a cmake that has nothing left to build."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tarpon-pages-"))
    shutil.copy(source / "dev", folder)
    (folder / "tools").mkdir()
    (folder / "tools/demo").symlink_to(source / "tools/demo")
    (folder / "build/release").mkdir(parents=True)
    (folder / "build/release/bin").symlink_to(pathlib.Path(tool).parent)
    (folder / "recordings").mkdir()
    (folder / "stand_ins").mkdir()
    builder = folder / "stand_ins/cmake"
    builder.write_text(f'#!/bin/sh\ncase $1 in --install) exec {cmake} "$@" ;; esac\n')
    builder.chmod(0o755)
    return folder


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run(line, folder, environment):
    """A failure's text, or nothing."""
    try:
        done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return f"still running after {LONGEST_S} s"
    return f"exit {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}" if done.returncode else ""


def pairs_joined(lines):
    """The commands of two hosts run at the same time, on this one."""
    port = free_port()
    waiting = ""
    for line in lines:
        host = re.match(r"host(\d)\$ (.*)", line)
        if host is None:
            yield line
            continue
        local = host[2].replace("tcp://10.0.0.1:29500", f"tcp://127.0.0.1:{port}")
        if host[1] == "1":
            waiting = local
        else:
            yield f"{waiting} & {local} && wait $!"


def prepared(line, build):
    for old, new in STAND_INS:
        line = line.replace(old, new)
    return line.replace("build/release ", f"{build} ")


def skip_reason(line):
    for beginning, reason in ELSEWHERE.items():
        if line.startswith(beginning):
            return reason
    if os.geteuid() != 0 and any(word in line for word in NEEDS_ROOT):
        return "it needs root"
    return ""


def main():
    source, tool, cmake, build = sys.argv[1:]
    source = pathlib.Path(source)
    folder = folder_of_reader(source, tool, cmake)
    environment = dict(os.environ, PATH=f"{folder}/stand_ins:{pathlib.Path(tool).parent}:{os.environ['PATH']}")
    failures = ran = 0
    try:
        # A recording for the commands that read one: its call ends long before all has arrived.
        run("tarpon allreduce --local-ranks 2 -b 16M -e 16M -n 1 -w 0 --mode bounded --bound 1ms "
            "--flight recordings", folder, environment)
        for page in PAGES:
            for line in pairs_joined(commands(source / page)):
                reason = skip_reason(line)
                if reason:
                    print(f"SKIP: {page}: {line}: {reason}")
                    continue
                failure = run(prepared(line, build), folder, environment)
                ran += 1
                failures += bool(failure)
                print(f"{'FAIL' if failure else 'ok'}: {page}: {line}{': ' + failure if failure else ''}")
    finally:
        shutil.rmtree(folder)
    if ran < 10:
        sys.exit(f"only {ran} commands were found in the pages")
    sys.exit(1 if failures else 0)


main()
