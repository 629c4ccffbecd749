#include "lockstep/parallel/data/pth/torch_types.h"

#include <algorithm>
#include <array>

namespace lockstep::internal {
namespace {

struct KnownGlobal {
    std::string_view module, name;
    TorchGlobal what;
};
constexpr std::array<KnownGlobal, 33> known_globals = {
    {{"collections", "OrderedDict", TorchGlobal::ordered_dict},
     {"collections", "defaultdict", TorchGlobal::dictionary},
     {"collections", "Counter", TorchGlobal::dictionary},
     {"__builtin__", "dict", TorchGlobal::dictionary},
     {"builtins", "dict", TorchGlobal::dictionary},
     {"__builtin__", "set", TorchGlobal::set},
     {"builtins", "set", TorchGlobal::set},
     {"__builtin__", "frozenset", TorchGlobal::set},
     {"builtins", "frozenset", TorchGlobal::set},
     {"torch", "Size", TorchGlobal::size},
     {"torch._utils", "_rebuild_tensor_v2", TorchGlobal::rebuild_tensor},
     {"torch._utils", "_rebuild_tensor_v3", TorchGlobal::rebuild_tensor_with_dtype},
     {"torch._utils", "_rebuild_parameter", TorchGlobal::rebuild_parameter},
     {"torch._utils", "_rebuild_parameter_with_state", TorchGlobal::rebuild_parameter_with_state},
     {"torch._tensor", "_rebuild_from_type_v2", TorchGlobal::rebuild_from_type},
     {"torch._tensor", "_rebuild_from_type", TorchGlobal::rebuild_from_type},
     {"torch.tensor", "_rebuild_from_type", TorchGlobal::rebuild_from_type},
     {"torch._utils", "_rebuild_tensor", TorchGlobal::rebuild_other},
     {"torch._utils", "_rebuild_qtensor", TorchGlobal::rebuild_other},
     {"torch._utils", "_rebuild_sparse_tensor", TorchGlobal::rebuild_other},
     {"torch._utils", "_rebuild_sparse_csr_tensor", TorchGlobal::rebuild_other},
     {"torch._utils", "_rebuild_nested_tensor", TorchGlobal::rebuild_other},
     {"torch._utils", "_rebuild_wrapper_subclass", TorchGlobal::rebuild_other},
     {"torch._utils", "_rebuild_meta_tensor_no_storage", TorchGlobal::rebuild_other},
     {"torch._utils", "_rebuild_device_tensor_from_numpy", TorchGlobal::rebuild_other},
     {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", TorchGlobal::rebuild_other},
     {"torch._utils", "_rebuild_xla_tensor", TorchGlobal::rebuild_other},
     {"torch.storage", "UntypedStorage", TorchGlobal::untyped_storage},
     {"torch", "UntypedStorage", TorchGlobal::untyped_storage},
     {"torch", "Tensor", TorchGlobal::tensor_type},
     {"torch._tensor", "Tensor", TorchGlobal::tensor_type},
     {"torch.nn.parameter", "Parameter", TorchGlobal::tensor_type},
     {"torch.nn.parameter", "Buffer", TorchGlobal::tensor_type}}};

}  // namespace

NamedGlobal find_global(std::string_view module, std::string_view name) {
    const auto* known = std::find_if(known_globals.begin(), known_globals.end(), [&](const KnownGlobal& global) {
        return global.module == module && global.name == name;
    });
    if (known != known_globals.end()) return {known->what};
    if (module != "torch" || name.empty()) return {};
    for (std::uint32_t type = 0; type < torch_types.size(); ++type) {
        if (torch_types[type].storage == name) return {TorchGlobal::typed_storage, type};
        if (torch_types[type].dtype == name) return {TorchGlobal::dtype, type};
    }
    return {};
}

}  // namespace lockstep::internal
