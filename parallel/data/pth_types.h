// Content of a file of torch.save, as seen by its readers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/runtime/dtype.h"

namespace lockstep {

/// One tensor of a file, as it is after reading: dense and row-major. `bytes` may exceed the size in the file, because
/// an expanded tensor is stored once.
struct PthEntry {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    std::uint64_t bytes = 0;
};

/// A Python value in a file, other than its tensors.
struct PthValue {
    /// None.
    struct Absent {
        bool operator==(const Absent&) const = default;
    };
    /// A tensor, or an object whose content is not read; `type` is the name of its class or of the function that
    /// creates it.
    struct Unread {
        std::string type;
        bool operator==(const Unread&) const = default;
    };
    using List = std::vector<PthValue>;  ///< a list, a tuple or a set
    struct Entry;
    using Dictionary = std::vector<Entry>;  ///< in the order of the file

    std::variant<Absent, bool, std::int64_t, double, std::string, List, Dictionary, Unread> value;

    /// Null if the value is of another type.
    template <class T>
    const T* as() const {
        return std::get_if<T>(&value);
    }
    bool operator==(const PthValue&) const = default;
};

/// A key of a dictionary and its value.
struct PthValue::Entry {
    PthValue first, second;
    bool operator==(const Entry&) const = default;
};

}  // namespace lockstep
