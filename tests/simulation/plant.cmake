# Copies SOURCE to OUTPUT with FIND, which has to be there once, replaced by PLANT.
file(READ ${SOURCE} text)
string(REPLACE "${FIND}" "${PLANT}" planted "${text}")
string(LENGTH "${text}" before)
string(LENGTH "${planted}" after)
string(LENGTH "${FIND}" found)
string(LENGTH "${PLANT}" put)
math(EXPR expected "${before} - ${found} + ${put}")
if(NOT after EQUAL expected OR text STREQUAL planted)
  message(FATAL_ERROR "${SOURCE}: \"${FIND}\" is not there once: plant the canary elsewhere "
                      "(tests/simulation/CMakeLists.txt)")
endif()
file(WRITE ${OUTPUT} "${planted}")
