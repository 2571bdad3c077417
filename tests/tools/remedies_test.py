#!/usr/bin/env python3
"""remedies_test.py SOURCE TOOL [SIMULATOR]: whatever a message advises, the tool takes.

The string literals of tools/, collectives/, transport/ and xdp/ are read from the source. Each
`tarpon COMMAND ...` in them must be a command, and each option must be one of that command; an option
without a command must be one of all commands that can print the message (PRINTED_BY). Values that look
like a choice (`--mode skb`) are given to the tool as well. Without SIMULATOR, advice to run that program is not
looked at."""
import collections, functools, glob, os, re, subprocess, sys, unittest

SOURCE, TOOL = sys.argv[1:3]
SIMULATOR = sys.argv[3] if len(sys.argv) > 3 else None

COMMANDS = ("all_reduce", "allreduce", "check", "doctor", "flight", "info", "run", "status", "testbed", "xdp",
            "xdp load", "xdp serve", "xdp status", "xdp unload", "xdp clean")
JOBS = "allreduce", "check"
LOAD = "xdp load",
# Commands that print the messages of a file; the first pattern that fits counts.
PRINTED_BY = (
    (r"tools/(simulation(/\w+)?|reference)/\w+\.cc", ("sim seeds",)),
    (r"tools/scale/\w+\.cc", ("sim scale",)),
    (r"tools/flight/(rules\w*|cause)\.cc", ("allreduce",)),  # advice for the job
    (r"tools/flight/\w+\.cc", ("flight",)),
    (r"tools/(status/\w+|job/rank_sockets)\.cc", ("status",)),
    (r"tools/(xdp/xdp_command|xdp/load|system/shared_program|cli/confirmation)\.cc", LOAD),
    (r"(tools/xdp/serve|xdp/helper(_client)?|xdp/served_port)\.cc", ("xdp serve",)),
    (r"tools/xdp/(status|xdp_report)\.cc", ("xdp status",)),
    (r"tools/(namespaces/(testbed|testbed_shape|network_namespace)|testbed/\w+)\.cc", ("testbed", *JOBS)),
    (r"tools/launch/testbed_command\.cc", ("testbed",)),
    (r"(tools/launch/run_command|collectives/gloo/\w+)\.cc", ("run",)),
    (r"tools/check/(check_command|(pair_)?probe)\.cc", ("check",)),
    (r"tools/(doctor/doctor\w*|system/drivers)\.cc", JOBS),  # advice for a job
    (r"tools/(job/(options/job_options|session|datapath_text)|cli/debug_log|namespaces/background_traffic)\.cc", JOBS),
    (r"tools/.*", ("allreduce",)),
    (r"(collectives|transport|xdp)/.*", JOBS),
)
# (file, option or command): reason.
EXCEPTIONS = {
    ("collectives/secret/secure_socket.cc", "tarpon tls"): "names a use of a key",
    ("transport/seal/packet_key.cc", "tarpon packet"): "names a use of a key",
    ("tools/collective/collective_command.cc", "--root"): "of the collectives that have a root",
    ("tools/flight/flight_command.cc", "--flight"): "of the job that wrote the recordings",
    ("tools/flight/merge.cc", "--flight"): "of the job that wrote the recordings",
    ("tools/launch/run_command.cc", "-c"): "of Python",
    ("tools/xdp/xdp_command.cc", "--json"): "defined there for xdp status",
    ("tools/xdp/xdp_command.cc", "--watch"): "defined there for xdp status",
    ("tools/xdp/xdp_command.cc", "--socket"): "defined there for xdp serve",
    ("tools/xdp/xdp_command.cc", "--group"): "defined there for xdp serve",
}
# Programs of others, up to the end of their part of the sentence.
FOREIGN = re.compile(r"\b(docker|nsenter|groupadd|ethtool|ip|sysctl|ulimit|setcap|mount|mpirun|srun|gdb) [^:;,(]*"
                     r"|\$\(command -v")
# What may follow an option as its value, rather than go on with the sentence.
CHOICES = {"skb", "native", "veth", "loopback", "exact", "bounded", "xdp", "uring", "mmsg", "on", "off",
           "float", "int8"}
OPTION = re.compile(r"(?<![\w/=\"-])(--[a-z][\w-]*|-[A-Za-z])(?![\w-])(?:[ =]([\w:/.]+))?")
SIM_CALL = re.compile(r"\btarpon-sim ((?:seeds|scale)\b)([^,;:()\"]*)")
CALL = re.compile(r"\btarpon ((?:[a-z]+ )?[a-z_]+)\b([^,;:()\"]*)")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def literals(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    raw = re.findall(r'R"\((.*?)\)"', text, re.DOTALL)
    text = re.sub(r'R"\(.*?\)"', '""', text, flags=re.DOTALL)
    text = re.sub(r"^\s*#include.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"(?<![:\"])//.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r'"\s*\n\s*"', "", text)
    return raw + [re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), one)
                  for one in LITERAL.findall(text)]


def program(command):
    """The words that run it: "sim scale" is `tarpon-sim scale`."""
    words = command.split()
    return [SIMULATOR, *words[1:]] if words[0] == "sim" else [TOOL, *words]


@functools.cache
def takes(command, option, value):
    """Whether the tool parses it. --help comes last, so that nothing runs."""
    words = [*program(command), option, *([value] if value else []), "--help"]
    if not value:
        return option in options_of(command)
    return subprocess.run(words, capture_output=True, timeout=20).returncode == 0


@functools.cache
def options_of(command):
    ended = subprocess.run([*program(command), "--help"], capture_output=True, text=True, timeout=20,
                           check=True)
    names = re.findall(r"^\s+((?:-[\w-]+,? ?)+)", ended.stdout, re.MULTILINE)
    return {name for group in names for name in re.findall(r"-[\w-]+", group)}


def printers(file):
    return next(commands for pattern, commands in PRINTED_BY if re.fullmatch(pattern, file))


def wrong_in(file, literal):
    """What the tool does not take, as (file, what) and why."""
    found = {}
    text = FOREIGN.sub(" ", literal)

    def check(commands, part):
        for option, value in OPTION.findall(part):
            value = value if value in CHOICES else ""
            for command in commands:
                if not takes(command, option, value):
                    found[file, f"{option} {value}".strip()] = f"{command} does not take it: {literal!r}"

    for words, rest in CALL.findall(text):
        command = next((known for known in (words, words.split()[0]) if known in COMMANDS), None)
        if command is None:
            found[file, f"tarpon {words}"] = f"no such command: {literal!r}"
        else:
            check((command,), rest)
    if SIMULATOR:
        for words, rest in SIM_CALL.findall(text):
            check(("sim " + words,), rest)
    printed_by = printers(file)
    if SIMULATOR or not printed_by[0].startswith("sim "):
        check(printed_by, SIM_CALL.sub(" ", CALL.sub(" ", text)))
    return found


def files():
    for folder in "tools", "collectives", "transport", "xdp":
        for path in sorted(glob.glob(os.path.join(SOURCE, folder, "**/*.cc"), recursive=True)):
            file = os.path.relpath(path, SOURCE)
            # The parser and the help speak of the program's own options.
            if not file.startswith(("tools/examples/", "tools/cli/")):
                yield file, path


class Remedies(unittest.TestCase):
    def test_every_message(self):
        wrong, seen = {}, collections.Counter()
        for file, path in files():
            for literal in literals(path):
                if re.fullmatch(r"-\w,--\w+", literal):
                    continue  # the definition of an option; those of nccl-tests are not in the help
                seen["options"] += len(OPTION.findall(literal))
                seen["commands"] += len(CALL.findall(literal))
                wrong |= wrong_in(file, literal)
        self.assertGreater(seen["options"], 100)
        self.assertGreater(seen["commands"], 15)
        unknown = {what: why for what, why in wrong.items() if what not in EXCEPTIONS}
        self.assertEqual(unknown, {}, "\n".join(f"{file}: {what}: {why}"
                                                for (file, what), why in unknown.items()))
        self.assertEqual(set(EXCEPTIONS) - set(wrong), set(), "exceptions that nothing needs")

    def test_it_finds_what_it_is_for(self):
        for file, literal, what in (
                ("xdp/program.cc", "refuses: use --mode skb", "--mode skb"),
                ("tools/namespaces/network_namespace.cc", "run as root, or use --net loopback", "--net loopback"),
                ("collectives/flight/flight.cc", "see tarpon fly", "tarpon fly"),
                ("collectives/flight/flight.cc", "see tarpon flight --everything", "--everything"),
                ("tools/check/probe.cc", "choose a smaller -e", "-e")):
            self.assertIn((file, what), wrong_in(file, literal))
        for file, literal in (("xdp/program.cc", "tarpon xdp load {} --mode skb"),
                              ("collectives/environment/interfaces.cc", "name one with --interface"),
                              ("xdp/pins.cc", "ip netns exec does that: use nsenter --net=FILE")):
            self.assertEqual(wrong_in(file, literal), {})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
