// The functions and types that a pickle may name.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::internal {

enum class TorchGlobal : std::uint8_t {
    ordered_dict,
    size,
    rebuild_tensor,             ///< of a storage that knows its type
    rebuild_tensor_with_dtype,  ///< which comes as a further argument
    rebuild_parameter,
    typed_storage,
    untyped_storage,
    dtype
};

struct NamedGlobal {
    TorchGlobal what;
    std::uint32_t type = 0;  ///< which of torch_types a storage or a dtype means
};

/// Nothing where no state_dict needs it.
std::optional<NamedGlobal> find_global(std::string_view module, std::string_view name);

}  // namespace lockstep::internal
