#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/safetensors_header.h"
#include "lockstep/parallel/data/files/tensor_bytes.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {

namespace {

using Json = nlohmann::json;
using namespace safetensors_format;

[[noreturn]] void refuse_to_write(const std::filesystem::path& path, const std::string& what) {
    throw InvalidArgument("write_safetensors: " + path.string() + ": " + what);
}

/// The 8 bytes of length and the padded JSON.
std::string header_of(const std::filesystem::path& path, const SafetensorsLayout& layout,
                      const SafetensorsMetadata& metadata) {
    std::string text = "{";
    try {
        if (!metadata.empty()) text += fmt::format("{}:{}", Json(metadata_key).dump(), Json(metadata).dump());
        std::uint64_t offset = 0;
        for (std::size_t i = 0; i < layout.order.size(); ++i) {
            const SafetensorsTensor& tensor = *layout.order[i];
            const auto* type = std::find_if(type_names.begin(), type_names.end(),
                                            [&](const TypeName& t) { return t.dtype == tensor.dtype; });
            if (text.size() > 1) text += ',';
            text += Json(tensor.name).dump();
            text += R"(:{"dtype":")";
            text += type->name;
            text += R"(","shape":[)";
            for (std::size_t d = 0; d < tensor.shape.size(); ++d)
                text += fmt::format("{}{}", d > 0 ? "," : "", tensor.shape[d]);
            text += fmt::format(R"(],"data_offsets":[{},{}]}})", offset, offset + layout.sizes[i]);
            offset += layout.sizes[i];
        }
    } catch (const Json::exception&) {
        refuse_to_write(path, "the name of a tensor or the metadata is not UTF-8; expected UTF-8");
    }
    text += '}';
    text.append((prefix_bytes - text.size() % prefix_bytes) % prefix_bytes, ' ');  // so that the data is aligned
    if (text.size() > longest_header) {
        refuse_to_write(path,
                        "the header would take " + std::to_string(text.size()) + " bytes; expected at most 100 MB");
    }
    const auto prefix = std::bit_cast<std::array<char, prefix_bytes>>(static_cast<std::uint64_t>(text.size()));
    return std::string(prefix.begin(), prefix.end()) + text;
}

}  // namespace

SafetensorsLayout lay_out_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                                      const SafetensorsMetadata& metadata) {
    SafetensorsLayout layout;
    std::unordered_set<std::string_view> names;
    for (const SafetensorsTensor& tensor : tensors) {
        if (tensor.name.empty()) refuse_to_write(path, "a tensor has no name");
        if (tensor.name == metadata_key) refuse_to_write(path, "the tensor name __metadata__ is reserved");
        if (!names.insert(tensor.name).second) {
            refuse_to_write(path, "two tensors are called " + quote(tensor.name) + "; expected unique names");
        }
        const bool negative = std::any_of(tensor.shape.begin(), tensor.shape.end(), [](auto d) { return d < 0; });
        const auto bytes = negative ? std::nullopt : shape_bytes(tensor.shape, size_of(tensor.dtype));
        if (!bytes) {
            refuse_to_write(path, "tensor " + quote(tensor.name) + " has a negative or overflowing shape");
        }
        if (tensor.data == nullptr && *bytes != 0) {
            refuse_to_write(path, "tensor " + quote(tensor.name) + " has null data; expected a pointer to host memory");
        }
        layout.order.push_back(&tensor);
    }
    std::stable_sort(
        layout.order.begin(), layout.order.end(),
        [](const SafetensorsTensor* a, const SafetensorsTensor* b) { return size_of(a->dtype) > size_of(b->dtype); });
    for (const SafetensorsTensor* tensor : layout.order)
        layout.sizes.push_back(*shape_bytes(tensor->shape, size_of(tensor->dtype)));
    layout.header = header_of(path, layout, metadata);
    return layout;
}

void write_tensors(const SafetensorsLayout& layout, const std::function<void(std::span<const std::byte>)>& put) {
    put(std::as_bytes(std::span(layout.header)));
    for (std::size_t i = 0; i < layout.order.size(); ++i)
        put({static_cast<const std::byte*>(layout.order[i]->data), static_cast<std::size_t>(layout.sizes[i])});
}

}  // namespace lockstep::internal
