#include "lockstep/ops/any_module.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

std::string name_of(const std::type_info& type) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> readable(
        abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
    return readable ? readable.get() : type.name();
}

}  // namespace

namespace detail {

void throw_moved_any_module(const char* what) {
    throw InvalidArgument(
        fmt::format("AnyModule: {} of a module that was moved from; expected the AnyModule it was moved to", what));
}

void throw_other_module(const std::type_info& held, const std::type_info& wanted) {
    throw InvalidArgument(fmt::format("AnyModule: get<{}>() of a module of type {}; expected the type that it holds",
                                      name_of(wanted), name_of(held)));
}

}  // namespace detail

AnyModule& AnyModule::operator=(const AnyModule& other) {
    if (this == &other) return *this;
    if (held_ && other.held_ && held_->type() == other.held_->type())
        held_->assign(*other.held_);
    else
        held_ = other.held_ ? other.held_->copy() : nullptr;
    return *this;
}

AnyModule& AnyModule::operator=(AnyModule&& other) {  // NOLINT(performance-noexcept-move-constructor)
    if (this == &other) return *this;
    if (held_ && other.held_ && held_->type() == other.held_->type())
        held_->take(*other.held_);
    else
        held_ = std::move(other.held_);
    return *this;
}

}  // namespace lockstep
