#!/usr/bin/env python3
"""Builds stand-ins for the CUDA libraries that PyPI's torch links against.

Torch then imports and runs on a CPU without some 2.7 GB of nvidia-* wheels. Every function of a stand-in returns 100
(cudaErrorNoDevice), so torch.cuda.is_available() is False. Needs gcc and readelf.

usage: make_cuda_stubs.py SITE_PACKAGES    where torch is installed and the nvidia-* wheels are not
"""
import glob
import os
import re
import subprocess
import sys

# Libraries that every system has: not ours to stand in for.
SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|util)\.so|ld-linux|libgomp)")
SYSTEM_VERSIONS = ("GLIBC", "GCC_", "CXXABI", "GOMP", "OMP_", "LIBGOMP")
# Names of the functions of libraries whose symbols carry no version.
FAMILIES = {
    "libcudart": r"^(cuda|__cuda)",
    "libnvrtc": r"^nvrtc",
    "libnccl": r"^nccl",
    "libcudnn": r"^cudnn",
    "libcufft": r"^cufft",
    "libcurand": r"^curand",
    "libcusparse": r"^cusparse(?!Lt)",
    "libcusparseLt": r"^cusparseLt",
    "libcublas": r"^cublas(?!Lt)",
    "libcublasLt": r"^cublasLt",
    "libcusolver": r"^cusolver",
    "libcufile": r"^cuFile",
    "libcupti": r"^(cupti|activity)",
    "libnvshmem_host": r"^(nvshmem|nvshmemx|_Z.*nvshmem)",
}


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_symbols(libraries):
    """What the libraries define, and what they take from elsewhere: with a version, and without."""
    defined, unversioned, by_version = set(), set(), {}
    for library in libraries:
        for line in output_of("readelf", "--dyn-syms", "-W", library).splitlines():
            fields = line.split()
            if len(fields) < 8 or not fields[0].endswith(":"):
                continue
            kind, binding, section, name = fields[3], fields[4], fields[6], fields[7]
            if section != "UND":
                defined.add(name.split("@")[0])
            elif binding == "GLOBAL":
                versioned = re.match(r"([^@]+)@+(\S+)", name)
                if versioned:
                    by_version.setdefault(versioned[2], {})[versioned[1]] = kind
                else:
                    unversioned.add(name)
    return defined, unversioned - defined, by_version


def build(name, symbols, versions, folder):
    """One stand-in: `symbols` maps names to ELF kinds, `versions` maps version nodes to names."""
    source, script = os.path.join(folder, name + ".c"), os.path.join(folder, name + ".map")
    with open(source, "w", encoding="ascii") as file:
        for symbol, kind in sorted(symbols.items()):
            data = kind == "OBJECT"
            file.write(f"char {symbol}[4096];\n" if data else f"int {symbol}(void){{return 100;}}\n")
        if not symbols:
            file.write("int stub_empty(void){return 0;}\n")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-fno-builtin", f"-Wl,-soname,{name}"]
    if versions:
        with open(script, "w", encoding="ascii") as file:
            for version, names in versions.items():
                file.write(f"{version} {{ global: {' '.join(n + ';' for n in sorted(names))} }};\n")
        command.append(f"-Wl,--version-script={script}")
    subprocess.run([*command, "-o", os.path.join(folder, name), source], check=True)
    for path in (source, script):
        if os.path.exists(path):
            os.remove(path)


def main(site_packages):
    libraries = sorted(glob.glob(os.path.join(site_packages, "torch/lib/*.so*")))
    present = {os.path.basename(library) for library in libraries}
    folder = os.path.join(site_packages, "nvidia/cu13/lib")
    os.makedirs(folder, exist_ok=True)
    needed = set()
    for library in libraries:
        for name in re.findall(r"\(NEEDED\).*\[(.*?)\]", output_of("readelf", "-dW", library)):
            if name not in present and not SYSTEM.match(name):
                needed.add(name)
    _, unversioned, by_version = read_symbols(libraries)
    for name in sorted(needed):
        base = name.split(".so")[0]
        family = re.compile(FAMILIES.get(base, r"^$"))
        versions, symbols = {}, {}
        for version, members in by_version.items():
            if version.startswith(SYSTEM_VERSIONS):
                continue
            own = version == name or version.startswith(base + ".so")
            chosen = {n: kind for n, kind in members.items() if own or family.search(n)}
            if chosen:
                versions[version] = set(chosen)
                symbols.update(chosen)
        symbols.update({n: "FUNC" for n in unversioned if family.search(n)})
        build(name, symbols, versions, folder)
        print(name, len(symbols), "versions:", sorted(versions))


if __name__ == "__main__":
    main(sys.argv[1])
