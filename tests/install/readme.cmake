# The README shows examples/embed.cpp, which other tests build and run, to the letter.
file(READ ${SOURCE}/README.md readme)
file(READ ${SOURCE}/examples/embed.cpp example)
string(FIND "${readme}" "${example}" place)
if(place EQUAL -1)
  message(FATAL_ERROR "README.md does not hold examples/embed.cpp as it is")
endif()
