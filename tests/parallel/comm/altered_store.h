// A store that lies, for tests of what its users believe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/parallel/comm/store.h"

namespace lockstep::testing {

/// Hands on to another store, and lets a test change what goes through.
class AlteredStore final : public Store {
public:
    explicit AlteredStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
    std::function<std::string(std::string)> written = [](std::string value) { return value; };
    std::function<std::string(std::string)> read = [](std::string value) { return value; };

    void set(std::string_view key, std::string_view value) override { store_->set(key, written(std::string(value))); }
    std::string get(std::string_view key, Milliseconds timeout) override { return read(store_->get(key, timeout)); }
    std::optional<std::string> try_get(std::string_view key) override {
        auto value = store_->try_get(key);
        if (value) value = read(*value);
        return value;
    }
    std::int64_t add(std::string_view key, std::int64_t amount) override { return store_->add(key, amount); }
    std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override {
        return store_->compare_set(key, expected, desired);
    }
    bool remove(std::string_view key) override { return store_->remove(key); }
    std::int64_t count() override { return store_->count(); }
    std::unique_ptr<Store> clone(Milliseconds timeout) override { return store_->clone(timeout); }
    Milliseconds time_limit() const override { return store_->time_limit(); }
    std::string describe() const override { return store_->describe(); }

private:
    std::shared_ptr<Store> store_;
};

}  // namespace lockstep::testing
