# lockstep_cuda_architectures(RESULT NATIVE): default architectures, if neither CMAKE_CUDA_ARCHITECTURES nor CUDAARCHS is
# set. NATIVE: the architectures that CMake has found on this machine ("86-real;90-real"); anything else if it has no card.
# The result is then a list that every supported card can run: 75 as PTX, which the driver compiles, and machine code for
# the two most common kinds of data centre cards.
function(lockstep_cuda_architectures result native)
  if(native MATCHES "^[0-9]+[a-z]?-real(;[0-9]+[a-z]?-real)*$")
    list(TRANSFORM native REPLACE "-real$" "")  # with PTX, for future cards
    set(${result} ${native} PARENT_SCOPE)
  else()
    set(${result} 75-virtual 80-real 90-real PARENT_SCOPE)
  endif()
endfunction()
