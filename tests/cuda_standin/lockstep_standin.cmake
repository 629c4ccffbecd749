# lockstep_standin: Lockstep with its CUDA backend on the stand-in, for tests. Everything outside of the folders cuda and
# nccl is the very object that the libraries are made of; the CUDA sources are compiled by the C++ compiler, which makes loops
# of our kernels (runtime/cuda/launch.h). Needs the toolkit's headers, not nvcc.
get_property(cuda_sources GLOBAL PROPERTY LOCKSTEP_CUDA_SOURCES)
foreach(source ${cuda_sources})
  if(source MATCHES "\\.cu$")
    set_source_files_properties(${source} PROPERTIES LANGUAGE CXX)
  endif()
endforeach()

add_library(lockstep_standin STATIC launch_twin.cpp ${cuda_sources})
set(compiled_here cuda)
if(LOCKSTEP_STANDIN_NCCL)
  get_property(nccl_sources GLOBAL PROPERTY LOCKSTEP_NCCL_SOURCES)
  target_sources(lockstep_standin PRIVATE ${nccl_sources})
  set(compiled_here "(cuda|nccl)")
endif()
set(replaced "(${compiled_here}/[^/]*|in_library.cpp.o)")
foreach(library ${LOCKSTEP_LIBRARIES} ${LOCKSTEP_BACKEND_LIBRARIES})
  target_sources(lockstep_standin PRIVATE
    $<FILTER:$<TARGET_OBJECTS:${library}>,EXCLUDE,/${library}.dir/.*/${replaced}$>)
endforeach()
target_include_directories(lockstep_standin PUBLIC ${LOCKSTEP_INCLUDE_VIEW})
target_link_libraries(lockstep_standin
  PUBLIC cuda_standin Threads::Threads
  PRIVATE OpenMP::OpenMP_CXX fmt::fmt ZLIB::ZLIB oneDNN::dnnl $<$<BOOL:${LOCKSTEP_HAS_SLEEF}>:SLEEF::sleef> Sodium::sodium nlohmann_json::nlohmann_json
  $<$<BOOL:${LOCKSTEP_HAS_JPEG}>:JPEG::JPEG> $<$<BOOL:${LOCKSTEP_HAS_PNG}>:PNG::PNG> $<$<BOOL:${LOCKSTEP_HAS_GIF}>:GIF::GIF>
  $<$<BOOL:${LOCKSTEP_HAS_GLOO}>:Gloo::gloo> $<$<BOOL:${LOCKSTEP_HAS_MPI}>:MPILibrary::mpi>)
lockstep_warnings(lockstep_standin)
lockstep_sanitize(lockstep_standin)
# Loops of kernels are for tests only: to optimise them takes longer than the tests gain.
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_standin PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-O0>)
else()
  target_compile_options(lockstep_standin PRIVATE $<$<CONFIG:Release>:-O1>)
endif()
set_target_properties(lockstep_standin PROPERTIES LOCKSTEP_TESTS ON)
