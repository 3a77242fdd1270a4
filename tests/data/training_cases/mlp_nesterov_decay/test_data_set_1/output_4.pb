Bfc1.biasJuÊ¼•²é½
j=