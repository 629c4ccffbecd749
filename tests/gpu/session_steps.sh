# Steps of tests/gpu/session, most valuable first. The session sources this file for the list, and starts it with a
# function's name and arguments for each step. $WORK is a folder for the session; programs and libraries are in the paths.

all_steps() { # STAGE NAME SECONDS COMMAND...
  local kernels="~[#test_cuda_alignment]"
  step facts card 30 card
  step facts lockstep-info 60 lockstep-info
  step facts libraries 30 libraries

  step ops table 180 library_logs tests_op_table "every entry*,inputs may have any*"
  step ops kernels 60 tests_cuda_ops_gpu "$kernels"
  step ops alignment 60 library_logs tests_cuda_ops_gpu "[#test_cuda_alignment]"
  step ops streams 60 tests_cuda_backend_gpu

  step sanitizer "memcheck, kernels" 120 sanitize memcheck tests_cuda_ops_gpu "$kernels"
  step sanitizer "memcheck, op table" 240 sanitize memcheck tests_op_table "every entry*"
  step sanitizer "racecheck, kernels" 120 sanitize racecheck tests_cuda_ops_gpu "$kernels"
  step sanitizer "racecheck, op table" 240 sanitize racecheck tests_op_table "every entry*"
  step sanitizer "synccheck, op table" 180 sanitize synccheck tests_op_table "every entry*"

  step training tests 240 tests_cuda_training_gpu
  step training "mnist compared with the CPU" 120 compare_with_cpu
  local devices
  for devices in 1 2 4 8; do
    step training "mnist, bits of $devices logical devices" 60 same_losses "$devices" dp
  done

  step faults processes 180 tests_cuda_training_gpu "[.processes]"
  step faults "lost context" 60 tests_cuda_backend_gpu "[.lost]"
  step faults "limit of memory, bad steps" 60 tests_cuda_training_gpu "a step beyond*,a bad step*"

  step ranks tests 300 tests_cuda_ranks_gpu "~[#test_ranks_nccl]"
  step ranks "mnist, bits of two ranks on one card" 120 same_losses 2 ddp
  step ranks nccl 120 nccl

  step times kernels 180 benchmark kernel-times
  step times unet 120 benchmark unet-bench --cuda --ways one --bf16 --steps 10
  step times mnist 120 benchmark mnist-bench --cuda --ways one
  local rows
  for rows in 8 64 512; do
    step times "mnist, $rows rows" 120 speed "$rows"
  done
}

skip() {
  echo "skipped: $1"
  exit 0
}

card() {
  command -v nvidia-smi > /dev/null || skip "there is no nvidia-smi"
  nvidia-smi
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv
}

libraries() {
  ldd "$(command -v tests_op_table)" | awk '{ print $1, $3 }'
  uname -sr
  grep -m 1 'model name' /proc/cpuinfo
}

# library_logs PROGRAM...: also prints the errors that cuDNN and cuBLASLt log.
library_logs() {
  local status=0 log
  CUDNN_LOGLEVEL_DBG=1 CUDNN_LOGDEST_DBG="$WORK/cudnn.log" CUBLASLT_LOG_LEVEL=1 CUBLASLT_LOG_FILE="$WORK/cublaslt.log" \
    "$@" || status=$?
  for log in cudnn cublaslt; do
    [ ! -s "$WORK/$log.log" ] || { echo "$log logged $(wc -l < "$WORK/$log.log") lines:" && head -n 20 "$WORK/$log.log"; }
    rm -f "$WORK/$log.log"
  done
  return $status
}

sanitize() { # TOOL PROGRAM...
  command -v compute-sanitizer > /dev/null || PATH=$PATH:/usr/local/cuda/bin
  command -v compute-sanitizer > /dev/null || skip "there is no compute-sanitizer"
  compute-sanitizer --tool "$1" --error-exitcode 9 --report-api-errors no --print-limit 20 "${@:2}"
}

digits() {
  [ -e "$WORK/digits" ] || make-digits --data "$WORK/digits" --train 4000 --test 500 > /dev/null
}

figure() { # KEY FILE: the value of a key in a program's --json file
  tr -d ' \n' < "$2" | grep -oE "\"$1\":(\[[^]]*\]|[0-9.eE+-]+)" | cut -d : -f 2
}

trained() { # NAME FLAGS...: trains mnist and writes its figures to $WORK/NAME
  digits
  mnist --data "$WORK/digits" --quiet --seed 1 --json "$WORK/$1" "${@:2}"
}

logical() { # COUNT: a list of COUNT logical devices on the first GPU
  local i list=cuda:0
  for ((i = 1; i < $1; ++i)); do list+=,cuda:$i; done
  echo "$list"
}

compare_with_cpu() {
  trained on-card --parallel none --devices cuda:0 --shards 1 --steps 100
  trained on-host --parallel none --devices cpu:0 --shards 1 --steps 100
  paste <(figure losses "$WORK/on-card" | tr -d '[]' | tr , '\n') <(figure losses "$WORK/on-host" | tr -d '[]' | tr , '\n') |
    awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > most) { most = d; at = NR } }
      END { printf "%d losses, %g at most apart (step %d), the last ones %g and %g\n", NR, most, at, $1, $2
            exit !(NR == 100 && most < 0.05) }'
}

# same_losses DEVICES dp|ddp: checks three times that every loss of 60 steps in eight shards has the bits of one device.
same_losses() {
  local run
  [ -e "$WORK/one" ] || LOCKSTEP_DEVICES_PER_GPU=8 trained one --parallel dp --devices cuda:0 --shards 8 --steps 60
  for run in 1 2 3; do
    LOCKSTEP_DEVICES_PER_GPU=8 trained several --parallel "$2" --devices "$(logical "$1")" --shards 8 --steps 60 \
      $([ "$2" = dp ] || echo --backend shm)
    [ -n "$(figure losses "$WORK/several")" ]
    if [ "$(figure losses "$WORK/several")" != "$(figure losses "$WORK/one")" ]; then
      echo "run $run: losses differ from those of one device"
      figure losses "$WORK/one"
      figure losses "$WORK/several"
      exit 1
    fi
  done
  echo "three runs: the losses of one device, the last one $(figure losses "$WORK/one" | tr -d '[]' | tr , '\n' | tail -n 1)"
}

nccl() {
  # Not through a pipe: grep would end it early, which counts as a failure.
  grep -q '#test_ranks_nccl' <<< "$(tests_cuda_ranks_gpu --list-tags)" || skip "the session was prepared without NCCL"
  tests_cuda_ranks_gpu "[#test_ranks_nccl]"
}

speed() { # ROWS
  local device
  for device in cuda:0 cpu:0; do
    LOCKSTEP_CPU_DEVICES=1 trained speed --parallel none --devices "$device" --batch-size "$1" --epochs 50 \
      --steps "$([ "$device" = cuda:0 ] && echo 300 || echo 30)"
    echo "$1 rows on $device: $(figure samples_per_second "$WORK/speed") samples/s"
  done
}

# benchmark PROGRAM...: skipped if it is not in the archive; the one for the stand-in has no benchmarks.
benchmark() {
  command -v "$1" > /dev/null || skip "$1 was not packed"
  "$@"
}

# Started for one step, not sourced.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  "$@"
fi
