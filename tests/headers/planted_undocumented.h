// A header that the reference must refuse, for four reasons.
#pragma once

namespace lockstep {

/// Both functions.
void planted_first();
void planted_second(int first_argument_with_a_long_name, int second_argument_with_a_long_name,
                    int third_argument_with_a_long_name);

void planted_function();

struct PlantedClass {
    int member = 0;
};

/// A class whose member needs no comment.
class PlantedDocumented {
public:
    int size() const;

    int rows() const;
};
using PlantedName = PlantedDocumented;

enum class PlantedEnumeration { one };

/// A <vector> without quotes.
void planted_third();

}  // namespace lockstep
