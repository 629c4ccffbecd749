#include "lockstep/parallel/comm/mpi/mpi_operations.h"

#include <array>
#include <limits>
#include <utility>

#include "lockstep/parallel/comm/group/reduce_elements.h"
#include "lockstep/parallel/comm/mpi/mpi_world.h"

namespace lockstep {

namespace {

constexpr std::size_t dtypes = 8, operations = 5;
static_assert(static_cast<std::size_t>(DType::boolean) + 1 == dtypes);
static_assert(static_cast<std::size_t>(ReduceOp::product) + 1 == operations);

/// MPI passes only the type to a function, and the type does not identify dtype and operation: one function for each
/// dtype and operation.
template <std::size_t index>
void combine(void* in, void* in_out, int* count, MPI_Datatype*) {
    reduce_elements(static_cast<DType>(index / operations), static_cast<ReduceOp>(index % operations), in_out, in,
                    in_out, static_cast<std::size_t>(*count));
}

template <std::size_t... indices>
constexpr auto combinations(std::index_sequence<indices...>) {
    return std::array{&combine<indices>...};
}

}  // namespace

MPI_Op mpi_op(DType dtype, ReduceOp op) {
    static constexpr auto functions = combinations(std::make_index_sequence<dtypes * operations>());
    static std::mutex mutex;
    static std::array<MPI_Op, functions.size()> made = [] {
        std::array<MPI_Op, functions.size()> none{};
        none.fill(MPI_OP_NULL);
        return none;
    }();
    const std::size_t index = static_cast<std::size_t>(dtype) * operations + static_cast<std::size_t>(op);
    const std::lock_guard lock(mutex);
    if (made[index] == MPI_OP_NULL) require_mpi(MPI_Op_create(functions[index], 1, &made[index]), "MPI_Op_create");
    return made[index];
}

MPI_Datatype mpi_type(DType dtype) {
    switch (size_of(dtype)) {
        case 1: return MPI_UINT8_T;
        case 2: return MPI_UINT16_T;
        case 4: return MPI_UINT32_T;
        default: return MPI_UINT64_T;
    }
}

MpiBytes::MpiBytes(std::size_t bytes) : count_(1) {
    if (bytes <= std::numeric_limits<int>::max()) {
        count_ = static_cast<int>(bytes);
        return;
    }
    constexpr std::size_t block = std::size_t{1} << 20;
    MPI_Datatype blocks = MPI_DATATYPE_NULL;
    require_mpi(MPI_Type_contiguous(static_cast<int>(block), MPI_BYTE, &blocks), "MPI_Type_contiguous");
    const std::array<int, 2> counts{static_cast<int>(bytes / block), static_cast<int>(bytes % block)};
    const std::array<MPI_Aint, 2> offsets{0, static_cast<MPI_Aint>(bytes / block * block)};
    const std::array<MPI_Datatype, 2> types{blocks, MPI_BYTE};
    const int status = MPI_Type_create_struct(2, counts.data(), offsets.data(), types.data(), &type_);
    MPI_Type_free(&blocks);
    require_mpi(status, "MPI_Type_create_struct");
    require_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
}

MpiBytes::~MpiBytes() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);  // operations in flight continue
}

}  // namespace lockstep
