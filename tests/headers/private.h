// The header that planted_private.h includes.
#pragma once
