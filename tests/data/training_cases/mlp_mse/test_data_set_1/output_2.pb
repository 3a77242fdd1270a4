Bfc0.biasJÓ‰Ì½Á6Ž¼²
Î»Fƒ=P“b=