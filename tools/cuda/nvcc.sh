# The compiler of the kernels and its flags, for scripts that source this from the repository's root: sets NVCC, flags and
# kernels. NVCC is that of the wheels in tools/cuda/requirements.txt, in a virtual environment in target/nvcc, where it is
# not set already.
kernels=crates/undraft-cuda/kernels

if [[ -z ${NVCC:-} ]]; then
    env=target/nvcc
    if [[ ! -x $env/bin/python ]] || ! cmp -s tools/cuda/requirements.txt "$env/requirements.txt"; then
        python3 -m venv "$env"
        "$env/bin/python" -m pip install -q -r tools/cuda/requirements.txt
        cp tools/cuda/requirements.txt "$env/requirements.txt"
    fi
    NVCC=$("$env/bin/python" -c 'import nvidia.cu13 as m; print(list(m.__path__)[0])')/bin/nvcc
fi

# No fast-math, and no fusing but that of __fmaf_rn: results must not depend on the compiler's choice.
flags=(-std=c++17 -O3 -fmad=false)

# Of what ptxas -v says, a line a kernel: name, registers, bytes spilled, bytes read back.
resources() {
    awk -F"'" '/Compiling entry function/ { name = $2 }
        /bytes spill stores/ { split($0, w, " "); stored = w[5]; loaded = w[9] }
        /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); print name, substr($0, RSTART + 5, RLENGTH - 5), stored, loaded }' | sort
}
