# The default architectures, for the cards that CMake finds.
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/CudaArchitectures.cmake)

function(expect native expected)
  lockstep_cuda_architectures(found "${native}")
  if(NOT found STREQUAL expected)
    message(FATAL_ERROR "cards '${native}': '${found}' instead of '${expected}'")
  endif()
endfunction()

expect("90-real" "90")
expect("86-real;90-real" "86;90")
expect("100a-real" "100a")
expect("" "75-virtual;80-real;90-real")
expect("No CUDA devices found.-real" "75-virtual;80-real;90-real")
