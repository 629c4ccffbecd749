/// Objects that a thread keeps from call to call.
#pragma once

#include <utility>

namespace lockstep {

/// The calling thread's `T`, made at its first call. Its own objects go before static ones do, whose destructors may
/// still call: what is made then stays. Give each use a type of its own.
template <class T>
T& kept_by_thread() {
    static thread_local T* object = nullptr;  // a pointer has no destructor: it can be read until the very end
    struct Owner {
        ~Owner() { delete std::exchange(object, nullptr); }
    };
    if (object == nullptr) {
        static thread_local Owner owner;  // begins to live once: not again after its end
        static_cast<void>(&owner);
        object = new T;
    }
    return *object;
}

}  // namespace lockstep
