// A program outside of Lockstep's build: one header, one target.
#include <lockstep/lockstep.h>

#include <cstdio>

int main() {
    try {
        throw lockstep::InvalidArgument("a consumer can throw and catch Lockstep's errors");
    } catch (const lockstep::Error& error) {
        std::puts(error.what());
        return 0;
    }
}
