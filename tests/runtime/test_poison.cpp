// Memory that work did not declare is poisoned while it runs, under AddressSanitizer; no-op otherwise.
#include "lockstep/runtime/cpu/serial_mode.h"

#include <optional>

#include "lockstep/tests/catch.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
static bool poisoned(const void* address) { return __asan_address_is_poisoned(address) != 0; }
constexpr bool sanitized = true;
#else
static bool poisoned(const void*) { return false; }
constexpr bool sanitized = false;
#endif

using namespace lockstep;

TEST_CASE("only declared bytes of live blocks are accessible inside a scope") {
    CHECK(poison::available == sanitized);
    std::vector<char> first(512), second(512), not_live(64);
    const Access declared[] = {{first.data() + 64, 100, Device::cpu(0), Access::Mode::read},
                               {first.data() + 256, 4, Device::cpu(0), Access::Mode::write},
                               {first.data() + 260, 4, Device::cpu(0), Access::Mode::write}};
    std::optional<poison::Scope> scope;
    scope.emplace(
        std::vector<std::pair<void*, std::size_t>>{{first.data(), first.size()}, {second.data(), second.size()}},
        declared);
    CHECK(poisoned(first.data()) == sanitized);
    CHECK(poisoned(first.data() + 63) == sanitized);
    CHECK_FALSE(poisoned(first.data() + 64));
    CHECK_FALSE(poisoned(first.data() + 163));
    CHECK(poisoned(first.data() + 164) == sanitized);
    CHECK(poisoned(first.data() + 255) == sanitized);
    for (int i = 256; i < 264; ++i) CHECK_FALSE(poisoned(first.data() + i));
    CHECK(poisoned(first.data() + 264) == sanitized);
    CHECK(poisoned(second.data() + 100) == sanitized);
    CHECK_FALSE(poisoned(not_live.data()));
    first[100] = 1;

    scope.reset();
    for (std::size_t i = 0; i < first.size(); ++i) {
        if (poisoned(&first[i]) || poisoned(&second[i])) FAIL("byte " << i << " is still poisoned");
    }
}
