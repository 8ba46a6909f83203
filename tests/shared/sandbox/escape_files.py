"""Escape attempts over files, devices and the kernel's file systems. OTHER_FOLDER, TOKEN and the like are set by the runner."""

import sys
from itertools import combinations
from pathlib import Path

from shared.sandbox import Limits
from tests.shared.sandbox.escape_programs import NOTHING, SMALL, Escape, everywhere, limited

MANY_FILES = Limits(memory_mb=192, processes=24, file_mb=8, folder_mb=4, lifetime_s=60)
# What a sandbox may show of a home folder: the first part of the path to an interpreter and its packages, where they are in it.
_PATHS = [Path(path) for path in (sys.prefix, sys.base_prefix, *sys.path) if Path.home() in Path(path).parents]
_SHOWN = {path.relative_to(Path.home()).parts[0] for path in _PATHS}
IN_HOME = [sorted(names) for count in range(len(_SHOWN) + 1) for names in combinations(_SHOWN, count)]

FILES = (
    everywhere("one huge file", "attempt(written, 'huge', 'x' * (9 << 20))", "met EFBIG"),
    everywhere("sparse file of 1 TB", "attempt(os.truncate, open('sparse', 'w').name, 1 << 40)", "met EFBIG"),
    limited(
        "many files fill the disk",
        """
        for n in range(100):
            written(f"f{n}", "x" * (4 << 20))
            time.sleep(0.05)
        time.sleep(20)
        print("reached the end")
        """,
        "exceeded folder_mb",
    ),
    limited(
        "inodes",
        """
        for n in range(20000):
            os.close(os.open(f"f{n}", os.O_CREAT | os.O_WRONLY))
        time.sleep(20)
        print("reached the end")
        """,
        "exceeded folder_mb",
        limits=MANY_FILES,
    ),
    limited(
        "files without a name fill the disk",
        """
        kept = []
        for n in range(20):
            kept.append(open("f", "w"))
            os.unlink("f")
            kept[-1].write("x" * (4 << 20))
            kept[-1].flush()
        time.sleep(20)
        print("reached the end")
        """,
        "exceeded folder_mb",
        "reached the end",  # the warden does not see a container's descriptors
    ),
    limited(
        "a folder tree deeper than any path",
        """
        for n in range(400):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        print("reached 400 levels")
        time.sleep(20)
        """,
        "exceeded folder_mb",
    ),
    everywhere("open files without end", "attempt(lambda: [open('/dev/null') for _ in range(1000)])", "met EMFILE"),
    Escape(
        "another session's file",
        "attempt(open, OTHER_FOLDER + '/secret')",
        "met EACCES",
        "met ENOENT|met EACCES",
        "met ENOENT|met EACCES",
        needs="landlock 1|root",
    ),
    Escape(
        "a file in another session's folder",
        "attempt(written, OTHER_FOLDER + '/new')",
        "met EACCES",
        NOTHING,
        NOTHING,
        needs="landlock 1|root",
    ),
    Escape(
        "a symbolic link to another session's file",
        "os.symlink(OTHER_FOLDER + '/secret', 'link'); attempt(open, 'link')",
        "met EACCES",
        "met ENOENT|met EACCES",
        "met ENOENT|met EACCES",
        needs="landlock 1|root",
    ),
    Escape(
        "a hard link to the gateway's file",
        "attempt(os.link, TOKEN, 'hard')",
        "met EPERM|met EXDEV|met EACCES",
        NOTHING,
        NOTHING,
    ),
    Escape(
        "the gateway's token", "attempt(open, TOKEN)", "met EACCES", "met ENOENT", "met ENOENT", needs="landlock 1|root"
    ),
    Escape("/etc/shadow", "attempt(open, '/etc/shadow')", "met EACCES", "met ENOENT", "met EACCES"),
    Escape(
        "/etc/passwd of the machine",
        "attempt(lambda: MACHINE_USER in open('/etc/passwd').read())",
        "met EACCES",
        "met ENOENT",
        "reached False",
        needs="landlock 1",
    ),
    Escape(
        "home folders",
        "attempt(lambda: sorted(os.listdir(HOME)))",
        "met EACCES",
        "|".join((NOTHING, *(f"reached {names}" for names in IN_HOME))),
        NOTHING + "|reached []",
        needs="landlock 1|root",
    ),
    Escape(
        "the Python installation",
        f"attempt(written, {sys.prefix!r} + '/escape')",
        "met EACCES|met EROFS",
        NOTHING,
        NOTHING,
    ),
    Escape(
        "the bundled tools' source",
        "attempt(written, SOURCES + '/sampler/escape')",
        "met EACCES|met EROFS",
        NOTHING,
        NOTHING,
    ),
    Escape(
        "the machine's /tmp",
        "attempt(os.path.exists, MACHINE_TMP_FILE); attempt(os.listdir, '/tmp')",
        "met EACCES",
        "reached False",
        "reached False",
        needs="landlock 1",
    ),
    Escape(
        "/var/tmp, to leave files",
        "attempt(written, '/var/tmp/tandem-escape')",
        "met EACCES",
        NOTHING,
        "met EROFS|met EACCES",
        needs="landlock 1",
    ),
    Escape(
        "the root folder", "attempt(written, '/escape')", "met EACCES", "met EROFS|met EACCES", "met EROFS|met EACCES"
    ),
    Escape(
        "memory behind /dev",
        "attempt(written, '/dev/escape')",
        "met EACCES|met EPERM",
        "met EROFS|met EACCES",
        "met EROFS|met EACCES",
    ),
    Escape("raw memory", "attempt(open, '/dev/mem', 'rb')", NOTHING, NOTHING, NOTHING),
    Escape("raw disk", "attempt(open, RAW_DISK, 'rb')", NOTHING, NOTHING, NOTHING),
    Escape(
        "a device file",
        "attempt(os.mknod, 'device', 0o20666, os.makedev(1, 1))",
        "met EPERM|met EACCES",
        "met EPERM",
        "met EPERM",
    ),
    Escape(
        "SysRq",
        "attempt(written, '/proc/sysrq-trigger', 'h')",
        NOTHING,
        NOTHING,
        NOTHING,
    ),
    Escape(
        "kernel settings",
        "attempt(written, '/proc/sys/kernel/core_pattern', 'x')",
        "met EACCES",
        "met EACCES|met EROFS",
        "met EROFS|met EACCES",
    ),
    Escape("/sys", "attempt(written, '/sys/kernel/uevent_helper', 'x')", NOTHING, NOTHING, NOTHING),
    Escape(
        "cgroup's limits",
        "attempt(written, '/sys/fs/cgroup/memory/memory.limit_in_bytes', '-1')",
        NOTHING,
        NOTHING,
        NOTHING,
    ),
    Escape("root's user id", "attempt(os.setuid, 0)", "met EPERM", "met EINVAL|met EPERM", "met EPERM"),
    Escape(
        "a setuid program",
        "attempt(lambda: int(__import__('subprocess').run([SETUID, '-u'], capture_output=True).stdout) != 0)",
        "reached True|met EACCES",
        "reached True|met ENOENT",
        "reached True|met ENOENT",
    ),
    Escape(
        "limits raised again",
        "attempt(resource.setrlimit, resource.RLIMIT_FSIZE, (-1, -1))",
        "met EPERM|met ValueError",
        "met EPERM|met ValueError",
        "met EPERM|met ValueError",
    ),
)
assert SMALL.folder_mb > MANY_FILES.folder_mb
