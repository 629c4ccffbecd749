# MPILibrary::mpi: MPI's library for C, found with the C++ compiler, without the C++ bindings that MPI::MPI_CXX adds.
find_package(MPI QUIET COMPONENTS CXX)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(MPILibrary REQUIRED_VARS MPI_mpi_LIBRARY MPI_CXX_INCLUDE_DIRS)
if(MPILibrary_FOUND AND NOT TARGET MPILibrary::mpi)
  add_library(MPILibrary::mpi UNKNOWN IMPORTED)
  set_target_properties(MPILibrary::mpi PROPERTIES
    IMPORTED_LOCATION ${MPI_mpi_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES "${MPI_CXX_INCLUDE_DIRS}"
    INTERFACE_COMPILE_DEFINITIONS "OMPI_SKIP_MPICXX;MPICH_SKIP_MPICXX")
endif()
