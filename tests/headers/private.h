// What planted_private.h includes.
#pragma once
