#include "lockstep/parallel/data/pth/globals.h"

#include <algorithm>
#include <array>

#include "lockstep/parallel/data/pth/torch_types.h"

namespace lockstep::internal {
namespace {

struct AllowedGlobal {
    std::string_view module, name;
    TorchGlobal what;
};
constexpr std::array<AllowedGlobal, 7> allowed_globals = {
    {{"collections", "OrderedDict", TorchGlobal::ordered_dict},
     {"torch", "Size", TorchGlobal::size},
     {"torch._utils", "_rebuild_tensor_v2", TorchGlobal::rebuild_tensor},
     {"torch._utils", "_rebuild_tensor_v3", TorchGlobal::rebuild_tensor_with_dtype},
     {"torch._utils", "_rebuild_parameter", TorchGlobal::rebuild_parameter},
     {"torch.storage", "UntypedStorage", TorchGlobal::untyped_storage},
     {"torch", "UntypedStorage", TorchGlobal::untyped_storage}}};

}  // namespace

std::optional<NamedGlobal> find_global(std::string_view module, std::string_view name) {
    const auto* allowed =
        std::find_if(allowed_globals.begin(), allowed_globals.end(),
                     [&](const AllowedGlobal& global) { return global.module == module && global.name == name; });
    if (allowed != allowed_globals.end()) return NamedGlobal{allowed->what};
    if (module != "torch" || name.empty()) return std::nullopt;
    for (std::uint32_t type = 0; type < torch_types.size(); ++type) {
        if (torch_types[type].storage == name) return NamedGlobal{TorchGlobal::typed_storage, type};
        if (torch_types[type].dtype == name) return NamedGlobal{TorchGlobal::dtype, type};
    }
    return std::nullopt;
}

}  // namespace lockstep::internal
