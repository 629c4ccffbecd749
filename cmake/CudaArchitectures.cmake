# lockstep_cuda_architectures(RESULT NATIVE): what the CUDA code is compiled for unless CMAKE_CUDA_ARCHITECTURES or CUDAARCHS
# says so. NATIVE: the cards of this machine as CMake has found them ("86-real;90-real"); anything else where there are
# none. Then it is a list that every supported card can run: 75 as PTX, which the driver compiles, and the two most common
# kinds of data centre cards in full.
function(lockstep_cuda_architectures result native)
  if(native MATCHES "^[0-9]+[a-z]?-real(;[0-9]+[a-z]?-real)*$")
    list(TRANSFORM native REPLACE "-real$" "")  # with PTX, for the cards of tomorrow
    set(${result} ${native} PARENT_SCOPE)
  else()
    set(${result} 75-virtual 80-real 90-real PARENT_SCOPE)
  endif()
endfunction()
