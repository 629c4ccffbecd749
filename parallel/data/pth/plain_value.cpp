#include "lockstep/parallel/data/pth/plain_value.h"

#include <bit>
#include <cstddef>
#include <span>
#include <utility>

#include "lockstep/parallel/data/pth/torch_types.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {
namespace {

class PlainValueMaker {
public:
    PlainValueMaker(const PickleValues& values, const std::string& file) : values_(values), file_(file) {}

    PthValue make(PickleIndex index, int depth) {
        constexpr int deepest = 100;
        constexpr std::size_t most = 1'000'000;
        if (depth > deepest || ++made_ > most)
            throw DataError(file_ + ": a value has more than a million parts or 100 levels; expected a smaller one");
        const PickleValue& value = values_[index];
        switch (value.kind) {
            case PickleKind::none: return {PthValue::Absent{}};
            case PickleKind::boolean: return {value.value != 0};
            case PickleKind::integer: return {value.value};
            case PickleKind::number: return {std::bit_cast<double>(value.value)};
            case PickleKind::text: return {std::string(values_.text(value))};
            case PickleKind::tuple:
            case PickleKind::list: return {list_of(value, depth)};
            case PickleKind::dictionary: return {dictionary_of(value, depth)};
            case PickleKind::large_integer: return unread("int of more than 64 bits");
            case PickleKind::bytes: return unread("bytes");
            case PickleKind::global: return unread(values_.full_name(index));
            case PickleKind::object: return unread(values_.full_name(values_.object(value).made_by));
            case PickleKind::storage: return unread("storage");
            case PickleKind::tensor: break;
        }
        return unread("torch.Tensor");
    }

private:
    static PthValue unread(std::string type) { return {PthValue::Unread{std::move(type)}}; }

    PthValue::List list_of(const PickleValue& value, int depth) {
        PthValue::List list;
        for (const PickleIndex item : values_.items(value)) list.push_back(make(item, depth + 1));
        return list;
    }
    PthValue::Dictionary dictionary_of(const PickleValue& value, int depth) {
        PthValue::Dictionary dictionary;
        const std::span<const PickleIndex> items = values_.items(value);
        for (std::size_t i = 0; i < items.size(); i += 2) {
            PthValue key = make(items[i], depth + 1);
            dictionary.push_back({std::move(key), make(items[i + 1], depth + 1)});
        }
        return dictionary;
    }

    const PickleValues& values_;
    const std::string& file_;
    std::size_t made_ = 0;
};

}  // namespace

PthValue plain_value(const PickleValues& values, PickleIndex index, const std::string& file) {
    return PlainValueMaker(values, file).make(index, 0);
}

}  // namespace lockstep::internal
