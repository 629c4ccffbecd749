// Functions and types that a pickle names.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::internal {

enum class TorchGlobal : std::uint8_t {
    unknown,  ///< its objects are passed over, unread
    ordered_dict,
    dictionary,  ///< made of another one, or empty with a factory of missing values
    set,         ///< made of a list
    size,
    rebuild_tensor,             ///< from a typed storage
    rebuild_tensor_with_dtype,  ///< given as a further argument
    rebuild_parameter,
    rebuild_parameter_with_state,
    rebuild_from_type,  ///< calls another function, for a tensor with attributes
    rebuild_other,      ///< a tensor without dense elements in one storage
    typed_storage,
    untyped_storage,
    dtype,
    tensor_type  ///< torch.Tensor, Parameter or Buffer
};

struct NamedGlobal {
    TorchGlobal what = TorchGlobal::unknown;
    std::uint32_t type = 0;  ///< the entry of torch_types of a storage or a dtype
};

NamedGlobal find_global(std::string_view module, std::string_view name);

}  // namespace lockstep::internal
