#include "lockstep/runtime/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/backend.h"

namespace lockstep {

namespace {

std::string_view kind_name(DeviceKind kind) { return kind == DeviceKind::cuda ? "cuda" : "cpu"; }

/// "visible: cpu:0, cpu:1", for messages.
std::string visible_text() {
    std::string text;
    for (const DeviceKind kind : {DeviceKind::cuda, DeviceKind::cpu})
        for (int i = 0; i < device_count(kind); ++i)
            text += fmt::format("{}{}:{}", text.empty() ? "" : ", ", kind_name(kind), i);
    return "visible: " + (text.empty() ? std::string("none") : text);
}

/// Setting that determines the number of devices of this kind, for messages.
std::string advice(DeviceKind kind) {
    if (kind == DeviceKind::cpu) return "LOCKSTEP_CPU_DEVICES and CUDA_VISIBLE_DEVICES set the virtual devices";
    if (device_count(DeviceKind::cuda) == 0) return "there are no CUDA devices: " + cuda_absence_reason();
    return "CUDA_VISIBLE_DEVICES and LOCKSTEP_DEVICES_PER_GPU set the visible devices";
}

}  // namespace

Device Device::parse(std::string_view text) {
    if (text == "host") return host();
    const auto colon = text.find(':');
    const std::string_view kind = text.substr(0, colon);
    int index = 0;
    bool good = kind == "cpu" || kind == "cuda";
    if (good && colon != std::string_view::npos) {
        const std::string_view digits = text.substr(colon + 1);
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
        good = error == std::errc() && end == digits.data() + digits.size() && index >= 0;
    }
    if (!good)
        throw InvalidArgument(
            fmt::format("unknown device '{}'; expected cuda:0, cuda:1, ..., cpu:0, cpu:1, ... or host", text));
    return kind == "cuda" ? cuda(index) : cpu(index);
}

std::string Device::str() const { return is_host() ? "host" : fmt::format("{}:{}", kind_name(kind_), index_); }

int device_count(DeviceKind kind) {
    return kind == DeviceKind::cuda ? cuda_backend().device_count() : cpu_backend().device_count();
}

DeviceInfo device_info(Device device) {
    require_visible(device);
    return backend_of(device).info(device.index());
}

std::string cuda_absence_reason() { return cuda_backend().absence_reason(); }

bool peer_access(Device reader, Device owner) {
    require_visible(reader);
    require_visible(owner);
    if (reader == owner) return true;
    if (reader.kind() != owner.kind()) return false;
    // All CPU devices and the host share one address space; a GPU's host has kind cpu and was rejected above.
    if (reader.is_host() || owner.is_host()) return true;
    return backend_of(reader).peer_access(reader.index(), owner.index());
}

bool host_access(Device device) { return backend_of(device).host_access(); }

void require_visible(Device device) {
    if (device.is_host() || device.index() < device_count(device.kind())) return;
    throw InvalidArgument(fmt::format("device {} does not exist or is not visible ({}); {}", device.str(),
                                      visible_text(), advice(device.kind())));
}

Devices Devices::visible() {
    const DeviceKind kind = device_count(DeviceKind::cuda) > 0 ? DeviceKind::cuda : DeviceKind::cpu;
    std::vector<Device> all;
    for (int i = 0; i < device_count(kind); ++i)
        all.push_back(kind == DeviceKind::cuda ? Device::cuda(i) : Device::cpu(i));
    if (all.empty()) throw InvalidArgument("no device is visible: " + advice(kind));
    return all;
}

Devices Devices::parse(std::string_view text) {
    if (text == "all") return visible();
    std::vector<Device> devices;
    for (std::size_t at = 0; at <= text.size() && !text.empty();) {
        const auto comma = std::min(text.find(',', at), text.size());
        devices.push_back(Device::parse(text.substr(at, comma - at)));
        at = comma + 1;
    }
    return devices;
}

Devices::Devices(std::vector<Device> devices) : devices_(std::move(devices)) {
    if (devices_.empty())
        throw InvalidArgument("the list of devices is empty; expected at least one device, or 'all'; " +
                              visible_text());
    for (auto device = devices_.begin(); device != devices_.end(); ++device) {
        if (device->is_host())
            throw InvalidArgument("devices " + str() +
                                  ": the host cannot be used for training; expected a device such as cpu:0");
        if (device->kind() != kind())
            throw InvalidArgument("devices " + str() + ": mixed kinds; expected all cuda or all cpu");
        if (std::find(devices_.begin(), device, *device) != device)
            throw InvalidArgument(
                fmt::format("devices {}: {} is listed twice; expected every device once", str(), device->str()));
        require_visible(*device);
    }
}

std::string Devices::str() const {
    std::string text;
    for (const Device& device : devices_) {
        if (!text.empty()) text += ',';
        text += device.str();
    }
    return text;
}

}  // namespace lockstep
