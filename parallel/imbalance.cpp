#include "lockstep/parallel/engine.h"

#include <fmt/format.h>

namespace lockstep {

std::string imbalance_warning(const std::vector<DeviceInfo>& infos) {
    constexpr double least = 0.75;
    const auto check = [&](auto value) -> std::string {
        std::size_t low = 0;
        std::size_t high = 0;
        for (std::size_t i = 1; i < infos.size(); ++i) {
            if (value(infos[i]) < value(infos[low])) low = i;
            if (value(infos[i]) > value(infos[high])) high = i;
        }
        if (infos.empty() || value(infos[low]) >= least * value(infos[high])) return {};
        return fmt::format(
            "There is an imbalance between your devices. You may want to exclude device {} which has less than 75% of "
            "the memory or "
            "cores of device {}. You can do so by naming the devices, or by setting the CUDA_VISIBLE_DEVICES "
            "environment variable.",
            low, high);
    };
    std::string text = check([](const DeviceInfo& info) { return static_cast<double>(info.total_memory); });
    return text.empty() ? check([](const DeviceInfo& info) { return static_cast<double>(info.units); }) : text;
}

}  // namespace lockstep
