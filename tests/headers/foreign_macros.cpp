// Every public header compiles after those of Qt, ncurses, X11 and Windows: no parameter, member or enumerator has the
// name of one of their macros.
// The order matters: foreign_macros.h refuses another one.
// clang-format off
#include <bits/stdc++.h>
#include <sys/types.h>
#include <unistd.h>

#include "lockstep/tests/headers/foreign_macros.h"
#include "lockstep/lockstep.h"
#include "lockstep_public_headers.h"

int main() {
    const lockstep::Devices devices{lockstep::Device::cpu(0)};
    return devices.size() == 1 ? 0 : 1;
}
